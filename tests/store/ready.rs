//! Which of many queues have ready tasks.

use leasehold::domain::dispatch::Position;
use leasehold::domain::ids::{TaskId, TaskQueue};
use leasehold::domain::routing::{Routing, TaskKind};
use leasehold::domain::time::Timestamp;
use leasehold::store::asks::{self, NewAsk};
use leasehold::store::ready::{Place, ready};

use crate::kit::*;
use crate::routing::{open, session};

fn routing(kind: TaskKind, queue: &str) -> Routing {
    Routing {
        kind,
        namespace: "default".into(),
        queue: queue.into(),
        task_type: "greet".into(),
        priority: 5,
        fairness_key: None,
        fairness_weight: 1,
        build_id: Some("old".into()),
        needs: i64::MAX,
        session: None,
        preferred: None,
    }
}

/// Every kind of task that is ready is found on its queue and nowhere else, whoever may take it; what lies before the
/// beginning, is for later or is over is not.
#[tokio::test(flavor = "multi_thread")]
async fn queues_with_ready_tasks_are_found_among_others() {
    use TaskKind::{Activity, Query, UpdateValidation, Workflow};
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let then = Timestamp::from_micros(1_700_000_000_000_000);
    let later = now().plus_millis(3_600_000);
    let classed = Routing {
        fairness_key: Some("tenant".into()),
        ..routing(Workflow, "class")
    };
    let entered = Routing {
        session: Some(session("s", &[])),
        ..routing(Activity, "session")
    };
    let classed_later = Routing {
        fairness_key: Some("tenant".into()),
        ..routing(Workflow, "class-later")
    };
    let mut tasks = [
        (classed_later, later),
        (routing(Workflow, "plain"), then),
        (routing(Workflow, "later"), later),
        (classed, then),
        (entered, then),
    ]
    .into_iter();
    let count = tasks.len();
    open(&mut door, count, || tasks.next().unwrap()).await;
    for (no, kind, queue, timeout_ms) in
        [(1, Query, "ask", 60_000), (2, UpdateValidation, "over", 0)]
    {
        let ask = NewAsk {
            id: TaskId {
                run: started("asked").run_id(),
                no,
            },
            routing: routing(kind, queue),
            name: "state".to_owned(),
            arguments: String::new(),
            seen: 1,
            node: "n".to_owned(),
            timeout_ms,
            handed_to: None,
        };
        asks::insert(&bench.store.hot, &ask).await.unwrap().unwrap();
    }
    let at = Position::of_age(5, then);
    let start = Position::START;
    let past = Position::of_age(5, then.plus_millis(1));
    let wanted = [
        ("plain", Workflow, start, Some(at)),
        ("plain", Workflow, at, Some(at)),
        ("plain", Workflow, past, None),
        ("plain", Activity, start, None),
        ("plain", Query, start, None),
        ("later", Workflow, start, None),
        ("class", Workflow, past, Some(Position::END)),
        ("class", Activity, start, None),
        ("class-later", Workflow, start, Some(Position::END)),
        ("session", Activity, past, Some(Position::END)),
        ("session", Workflow, start, None),
        ("ask", Query, past, Some(Position::END)),
        ("ask", UpdateValidation, start, None),
        ("over", UpdateValidation, start, None),
        ("nobody's", Workflow, start, None),
    ];
    let namespace = "default".into();
    let other = "other".into();
    let queues: Vec<TaskQueue> = wanted.iter().map(|(queue, ..)| (*queue).into()).collect();
    let mut places: Vec<Place> = wanted
        .iter()
        .zip(&queues)
        .map(|((_, kind, from, _), queue)| Place {
            namespace: &namespace,
            queue,
            kind: *kind,
            from: *from,
        })
        .collect();
    places.push(Place {
        namespace: &other,
        ..places[0]
    });
    let mut found = ready(&bench.store.hot, &places).await.unwrap();
    found.sort_unstable_by_key(|(place, _)| *place);
    let expected: Vec<(usize, Position)> = wanted
        .iter()
        .enumerate()
        .filter_map(|(place, (.., at))| Some((place, (*at)?)))
        .collect();
    assert_eq!(found, expected);
    assert!(ready(&bench.store.hot, &[]).await.unwrap().is_empty());
    bench.end().await;
}
