//! A throttle store on a virtual clock, in memory or in Redis, and a macro that checks a property
//! in both.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::Kinds;
use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Grant, LaneRequest, Limit, MemoryStore, Name,
    RedisStore, Refund, Status, Store,
};

use super::refusals::work;
use crate::support::redis_server::Server;
use crate::support::{Database, app_environment};

/// The start of virtual time, in unix microseconds.
pub const START: i64 = 1_795_000_000_000_000;

/// A store on virtual time, with direct access to write into it by hand.
pub struct World {
    pub store: Arc<dyn Store>,
    pub now: Arc<AtomicI64>,
    pub raw: Raw,
}

pub enum Raw {
    Memory(Arc<MemoryStore>),
    Redis {
        client: Box<redis::Client>,
        url: String,
        prefix: String,
        _server: Option<Server>,
    },
}

impl World {
    pub fn memory() -> Self {
        let now = Arc::new(AtomicI64::new(START));
        let clock = now.clone();
        let store = Arc::new(MemoryStore::new(Arc::new(move || {
            clock.load(Ordering::SeqCst)
        })));
        Self {
            store: store.clone(),
            now,
            raw: Raw::Memory(store),
        }
    }

    pub fn redis() -> Self {
        let server = Server::start();
        let mut world = Self::redis_at(&server.url(), "t:");
        if let Raw::Redis { _server, .. } = &mut world.raw {
            *_server = Some(server);
        }
        world
    }

    pub fn redis_at(url: &str, prefix: &str) -> Self {
        let now = Arc::new(AtomicI64::new(START));
        let store = client(url, prefix, &now);
        let client = Box::new(redis::Client::open(url).expect("a URL"));
        let raw = Raw::Redis {
            client,
            url: url.to_owned(),
            prefix: prefix.to_owned(),
            _server: None,
        };
        Self { store, now, raw }
    }

    /// Returns another client of the same store, like another process.
    pub fn another(&self) -> Arc<dyn Store> {
        match &self.raw {
            Raw::Memory(store) => store.clone(),
            Raw::Redis { url, prefix, .. } => client(url, prefix, &self.now),
        }
    }

    pub fn write(&self, throttle: &str, field: &str, text: &str) {
        match &self.raw {
            Raw::Memory(store) => store.write_raw(&name(throttle), field, text),
            Raw::Redis { .. } => {
                self.redis_command(&["HSET", &self.knobs_key(throttle), field, text])
            }
        }
    }

    pub fn remove(&self, throttle: &str, field: &str) {
        match &self.raw {
            Raw::Memory(store) => store.remove_raw(&name(throttle), field),
            Raw::Redis { .. } => self.redis_command(&["HDEL", &self.knobs_key(throttle), field]),
        }
    }

    pub fn knobs(&self, throttle: &str, fields: &[(&str, &str)]) {
        fields
            .iter()
            .for_each(|(field, text)| self.write(throttle, field, text));
    }

    pub fn pass(&self, time: Duration) {
        self.now
            .fetch_add(time.as_micros() as i64, Ordering::SeqCst);
    }

    pub async fn take(&self, throttle: &str, want: u32) -> AcquireResponse {
        self.store.acquire(&ask(throttle, &[("", want, 1.0)])).await
    }

    /// Returns the number of jobs that a holder may begin.
    pub async fn began(&self, throttle: &str, want: u32) -> u32 {
        self.store
            .acquire(&work(throttle, &[("", want, 1.0)]))
            .await
            .lanes[0]
            .granted
    }

    pub async fn granted(&self, throttle: &str, want: u32) -> u32 {
        self.take(throttle, want).await.lanes[0].granted
    }

    /// Returns units granted to a key of a throttle.
    pub async fn refund(&self, throttle: &str, key: &str, grant: &Grant, units: u32) {
        let refund = Refund {
            key,
            grant,
            units,
            cost: 1.0,
        };
        self.store
            .refund_many(&name(throttle), &[refund])
            .await
            .expect("a store");
    }

    pub async fn status(&self, throttle: &str) -> Status {
        self.store
            .status(&name(throttle))
            .await
            .expect("a store")
            .expect("a throttle")
    }

    /// Takes everything available in small steps over `time`; returns the sum of grants.
    pub async fn drink(&self, throttle: &str, time: Duration) -> f64 {
        let (step, mut taken) = (time / 200, 0.0);
        for _ in 0..200 {
            self.pass(step);
            taken += f64::from(self.granted(throttle, 1_000_000).await);
        }
        taken
    }

    pub fn knobs_key(&self, throttle: &str) -> String {
        let Raw::Redis { prefix, .. } = &self.raw else {
            unreachable!("memory has no keys")
        };
        format!("{prefix}throttle:{throttle}:knobs")
    }

    pub fn redis_command(&self, words: &[&str]) {
        let Raw::Redis { client, .. } = &self.raw else {
            unreachable!("memory takes no commands")
        };
        let mut command = redis::cmd(words[0]);
        command
            .arg(&words[1..])
            .exec(&mut client.get_connection().expect("a connection"))
            .expect("a command");
    }
}

fn client(url: &str, prefix: &str, now: &Arc<AtomicI64>) -> Arc<dyn Store> {
    let clock = now.clone();
    let store = RedisStore::connect(url, prefix)
        .expect("a URL")
        .with_bound(Duration::from_secs(20));
    Arc::new(store.with_clock(Arc::new(move || clock.load(Ordering::SeqCst))))
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn ask(throttle: &str, lanes: &[(&str, u32, f64)]) -> AcquireRequest {
    let lane = |(key, want, cost): &(&str, u32, f64)| LaneRequest {
        key: (*key).to_owned(),
        want: *want,
        cost: *cost,
        held: 0,
    };
    AcquireRequest {
        throttle: name(throttle),
        lanes: lanes.iter().map(lane).collect(),
        holder: None,
    }
}

pub fn fields(fields: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
    fields
        .iter()
        .map(|(field, text)| ((*field).to_owned(), Some((*text).to_owned())))
        .collect()
}

pub fn stop_of(throttle: &str) -> Limit {
    Limit::Stopped {
        name: name(throttle),
        why: String::new(),
    }
}

pub fn change(given: &[(&str, &str)]) -> Change {
    Change {
        fields: fields(given),
        by: "test".to_owned(),
        why: "a test".to_owned(),
        create: true,
        ..Change::default()
    }
}

/// Starts the program with this database and this Redis, and knobs from `folder`.
pub async fn app_on(server: &Server, database: &Database, folder: &Path) -> App {
    app_of(Roles::ALL, server, database, folder).await
}

/// Starts these roles of the program as [`app_on`] starts all of them.
pub async fn app_of(roles: Roles, server: &Server, database: &Database, folder: &Path) -> App {
    let mut environment = app_environment(database, folder).await;
    environment.insert("REDIS_URL".to_owned(), server.url());
    environment.insert("FLYBALL_REDIS_PREFIX".to_owned(), String::new());
    let settings = Settings::load(None, &environment).unwrap();
    let app = App::start(&settings, roles, Kinds::default());
    app.await.unwrap()
}

/// Checks each property once in memory and once in Redis.
macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        mod in_memory { $(#[tokio::test] async fn $law() { super::$law(super::World::memory()).await; })* }
        mod in_redis { $(#[tokio::test] async fn $law() { super::$law(super::World::redis()).await; })* }
    };
}

pub(crate) use laws;
