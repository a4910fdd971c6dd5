//! Connections for short statements: few, kept open, tried when they were idle for long, and given up
//! when they fall silent, because a network can lose a connection without telling either side.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sqlx::postgres::{PgConnectOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection, Either, Execute, Executor, PgConnection, Postgres, SqlStr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::trouble::Trouble;

/// How long an answer is waited for: longer than a statement may run, so that only a connection that
/// has gone silent meets it.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the database may take to open a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for a free connection before it is told to try again.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is tried before it is used.
const TRIED_AFTER: Duration = Duration::from_secs(30);
/// How long such a try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a connection gives the room back at most that its largest answers took.
const SHRINK_EVERY: Duration = Duration::from_millis(100);

fn silent() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// Waits for the database, but not for ever.
///
/// # Errors
/// Those of the work, or that no answer came.
pub async fn bounded<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    tokio::time::timeout(ANSWER_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(silent()))
}

/// Opens a connection, or gives up.
///
/// # Errors
/// The database cannot be reached.
pub async fn connect(options: &PgConnectOptions) -> sqlx::Result<PgConnection> {
    tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(options))
        .await
        .unwrap_or_else(|_| Err(silent()))
}

/// A small pool. Statements run on it directly, each on a connection of its own.
#[derive(Clone, Debug)]
pub struct PgPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PgConnectOptions,
    size: u32,
    room: Arc<Semaphore>,
    /// The most recently used last.
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: PgConnection,
    since: Instant,
    shrunk: Instant,
}

impl Inner {
    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that works, as far as can be known, and when it last gave its buffers back.
    async fn open(&self) -> sqlx::Result<(PgConnection, Instant)> {
        loop {
            let idle = self.idle().pop();
            let Some(mut idle) = idle else {
                return Ok((connect(&self.options).await?, Instant::now()));
            };
            if idle.since.elapsed() <= TRIED_AFTER {
                return Ok((idle.connection, idle.shrunk));
            }
            let tried = tokio::time::timeout(TRY_TIMEOUT, idle.connection.ping()).await;
            if matches!(tried, Ok(Ok(()))) {
                return Ok((idle.connection, idle.shrunk));
            }
        }
    }
}

impl PgPool {
    /// A pool of at most `size` connections, made when they are needed.
    pub fn new(options: PgConnectOptions, size: u32) -> Self {
        let room = usize::try_from(size.max(1)).unwrap_or(1);
        Self(Arc::new(Inner {
            options,
            size: size.max(1),
            room: Arc::new(Semaphore::new(room)),
            idle: Mutex::default(),
        }))
    }

    /// A connection for several statements.
    ///
    /// # Errors
    /// The database cannot be reached, or all connections stay in use.
    pub async fn acquire(&self) -> sqlx::Result<Borrowed> {
        let room = Arc::clone(&self.0.room).acquire_owned();
        let room = tokio::time::timeout(ACQUIRE_TIMEOUT, room)
            .await
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        let (connection, shrunk) = self.0.open().await?;
        Ok(Borrowed {
            pool: Arc::clone(&self.0),
            connection,
            shrunk,
            _room: room,
        })
    }

    /// Begins a transaction. One that is dropped is rolled back.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn begin(&self) -> sqlx::Result<Transaction> {
        let mut borrowed = self.acquire().await?;
        bounded(borrowed.execute("begin")).await?;
        Ok(Transaction(borrowed))
    }

    /// Waits until no statement runs, a while at most, and closes everything.
    pub async fn close(&self) {
        let all = self.0.room.acquire_many(self.0.size);
        let _ = tokio::time::timeout(ACQUIRE_TIMEOUT, all).await;
        self.0.room.close();
        let idle = std::mem::take(&mut *self.0.idle());
        for idle in idle {
            let _ = tokio::time::timeout(TRY_TIMEOUT, idle.connection.close()).await;
        }
    }
}

/// A connection of the pool. It goes back only when it is said to be whole; one that was left in the
/// middle of something is closed.
#[derive(Debug)]
pub struct Borrowed {
    pool: Arc<Inner>,
    connection: PgConnection,
    shrunk: Instant,
    _room: OwnedSemaphorePermit,
}

impl Borrowed {
    /// Nothing is unfinished on it.
    pub fn whole(mut self) {
        let since = Instant::now();
        if since.duration_since(self.shrunk) > SHRINK_EVERY {
            self.connection.shrink_buffers();
            self.shrunk = since;
        }
        self.pool.idle().push(Idle {
            connection: self.connection,
            since,
            shrunk: self.shrunk,
        });
    }

    /// Judges the connection by what came of its only statement.
    fn after<T>(self, done: &sqlx::Result<T>) {
        match done {
            Ok(_) => self.whole(),
            Err(error) if Trouble::of(error) != Trouble::Connection => self.whole(),
            // The others were opened to the same server and have most likely met the same end.
            Err(_) => self.pool.idle().clear(),
        }
    }
}

impl Deref for Borrowed {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// A transaction, which is rolled back unless it is committed.
#[derive(Debug)]
pub struct Transaction(Borrowed);

impl Transaction {
    /// Makes it durable.
    ///
    /// # Errors
    /// It may or may not be.
    pub async fn commit(mut self) -> sqlx::Result<()> {
        bounded(self.0.execute("commit")).await?;
        self.0.whole();
        Ok(())
    }

    /// Takes it back and keeps the connection; one that is only dropped costs its connection.
    ///
    /// # Errors
    /// The connection is broken, and is closed.
    pub async fn rollback(mut self) -> sqlx::Result<()> {
        bounded(self.0.execute("rollback")).await?;
        self.0.whole();
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl<'p> Executor<'p> for &'_ PgPool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let all = async move {
            let mut borrowed = pool.acquire().await?;
            let done = bounded(borrowed.fetch_many(query).try_collect::<Vec<_>>()).await;
            borrowed.after(&done);
            done
        };
        stream::once(all)
            .map_ok(|steps| stream::iter(steps.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut borrowed = pool.acquire().await?;
            let done = bounded(borrowed.fetch_optional(query)).await;
            borrowed.after(&done);
            done
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut borrowed = pool.acquire().await?;
            let done = bounded(borrowed.prepare_with(sql, parameters)).await;
            borrowed.after(&done);
            done
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<sqlx::Describe<Postgres>>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut borrowed = pool.acquire().await?;
            let done = bounded(borrowed.describe(sql)).await;
            borrowed.after(&done);
            done
        })
    }
}
