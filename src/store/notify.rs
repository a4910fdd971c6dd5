//! Hints between nodes: one small notification per interval, from a connection of its own, after the
//! commits that it speaks of. A lost hint costs time, never a task.

use super::pool::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::Store;

const CHANNEL: &str = "leasehold_hints";

/// Bytes that PostgreSQL takes in one notification.
pub const MAX_NOTIFICATION: usize = 7_900;

/// Sends one notification.
///
/// # Errors
/// The database cannot be reached.
pub async fn send(pool: &PgPool, text: &str) -> sqlx::Result<()> {
    sqlx::query("select pg_notify($1, $2)")
        .bind(CHANNEL)
        .bind(text)
        .execute(pool)
        .await?;
    Ok(())
}

/// A connection that hears the notifications of all nodes, this one's included.
pub struct Ear(PgListener);

/// What was heard.
pub enum Heard {
    /// A notification.
    Hint(String),
    /// The connection broke and is back; whatever was said meanwhile is lost.
    Gap,
}

impl Ear {
    /// Opens the connection.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn open(store: &Store) -> sqlx::Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(store.options.clone().application_name("leasehold hints"));
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next notification.
    ///
    /// # Errors
    /// The connection cannot be brought back.
    pub async fn hear(&mut self) -> sqlx::Result<Heard> {
        Ok(match self.0.try_recv().await? {
            Some(notification) => Heard::Hint(notification.payload().to_owned()),
            None => Heard::Gap,
        })
    }
}
