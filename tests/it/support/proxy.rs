//! A proxy that breaks connections to a server: it cuts them mid-traffic, or lets them hang
//! silently.

use std::path::PathBuf;
use std::pin::pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// A proxy on loopback, bound to the lifetime of its runtime.
pub struct Proxy {
    /// The URL of the server through the proxy.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// The server of new connections.
    upstream: Mutex<Arc<Upstream>>,
    /// The number of bytes that a new connection may carry to the client before it is cut; 0 for no
    /// limit.
    budget: AtomicU64,
    /// Counts the cuts of all connections.
    cuts: watch::Sender<u64>,
    /// Counts the times that all connections were forgotten.
    forgotten: watch::Sender<u64>,
    broken: AtomicUsize,
    way: watch::Sender<Way>,
    /// The delay of each response, in milliseconds.
    delay_ms: AtomicU64,
}

/// The state of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Traffic passes.
    Open,
    /// Traffic is held back until the proxy is open again.
    Hung,
    /// Connections are closed, including new ones.
    Closed,
}

enum Upstream {
    Socket(PathBuf),
    Tcp(String, u16),
}

impl Proxy {
    /// Starts a proxy to the Postgres of this URL.
    pub async fn start(database_url: &str) -> Self {
        let options = PgConnectOptions::from_str(database_url).expect("the database's URL");
        let port = options.get_port();
        let upstream = Arc::new(match options.get_socket() {
            Some(dir) => Upstream::Socket(dir.join(format!(".s.PGSQL.{port}"))),
            None => Upstream::Tcp(options.get_host().to_owned(), port),
        });
        let (user, database) = (
            options.get_username(),
            options.get_database().expect("the URL names a database"),
        );
        Self::before(upstream, |own| {
            format!("postgres://{user}@127.0.0.1:{own}/{database}?sslmode=disable")
        })
        .await
    }

    /// Starts a proxy to the Redis that listens on this unix socket.
    pub async fn to_redis(socket: PathBuf) -> Self {
        Self::before(Arc::new(Upstream::Socket(socket)), |own| {
            format!("redis://127.0.0.1:{own}")
        })
        .await
    }

    /// Starts a proxy to the server at this `http://host:port`.
    pub async fn to_http(url: &str) -> Self {
        let authority = url.trim_start_matches("http://").trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').expect("a port");
        let upstream = Upstream::Tcp(host.to_owned(), port.parse().expect("a port"));
        Self::before(Arc::new(upstream), |own| format!("http://127.0.0.1:{own}")).await
    }

    async fn before(upstream: Arc<Upstream>, url: impl FnOnce(u16) -> String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = url(listener.local_addr().expect("an address").port());
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            budget: AtomicU64::new(0),
            cuts: watch::Sender::new(0),
            forgotten: watch::Sender::new(0),
            broken: AtomicUsize::new(0),
            way: watch::Sender::new(Way::Open),
            delay_ms: AtomicU64::new(0),
        });
        let served = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = served.upstream.lock().expect("the server").clone();
                tokio::spawn(carry(client, upstream, served.clone()));
            }
        });
        Self { url, shared }
    }

    /// Leads new connections to another Redis; the old ones stay where they are.
    pub fn lead_to_redis(&self, socket: PathBuf) {
        *self.shared.upstream.lock().expect("the server") = Arc::new(Upstream::Socket(socket));
    }

    /// Sets the state from now on.
    pub fn way(&self, way: Way) {
        self.shared.way.send_replace(way);
        if way == Way::Closed {
            self.cut();
        }
    }

    /// Delays each response by this time from now on.
    pub fn delay(&self, delay: Duration) {
        let delay_ms = delay.as_millis() as u64;
        self.shared.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets every connection hang until it is cut, like those to a server that vanished. New ones
    /// pass.
    pub fn forget(&self) {
        self.shared.forgotten.send_modify(|times| *times += 1);
    }

    /// Closes each new connection after about this many bytes of responses; 0 for never.
    pub fn budget(&self, bytes: u64) {
        self.shared.budget.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of connections broken so far.
    pub fn broken(&self) -> usize {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

async fn carry(client: TcpStream, upstream: Arc<Upstream>, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    cuts.mark_unchanged();
    let mut forgotten = shared.forgotten.subscribe();
    forgotten.mark_unchanged();
    if *shared.way.borrow() == Way::Closed {
        return;
    }
    let most = shared.budget.load(Ordering::Relaxed);
    let budget = if most == 0 {
        u64::MAX
    } else {
        most / 2 + rand::random_range(0..most)
    };
    let carried = async {
        match &*upstream {
            Upstream::Socket(path) => {
                both(client, UnixStream::connect(path).await?, budget, &shared).await
            }
            Upstream::Tcp(host, port) => {
                both(
                    client,
                    TcpStream::connect((host.as_str(), *port)).await?,
                    budget,
                    &shared,
                )
                .await
            }
        }
    };
    let mut carried = pin!(carried);
    let broken = tokio::select! {
        ended = &mut carried => matches!(ended, Ok(true)),
        _ = cuts.changed() => true,
        _ = forgotten.changed() => cuts.changed().await.is_ok(),
    };
    shared
        .broken
        .fetch_add(usize::from(broken), Ordering::Relaxed);
}

/// Copies traffic in both directions until one side ends; returns true if the byte limit was
/// reached first.
async fn both<S>(
    client: TcpStream,
    server: S,
    budget: u64,
    shared: &Shared,
) -> std::io::Result<bool>
where
    S: AsyncRead + AsyncWrite,
{
    let _ = client.set_nodelay(true);
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let down = async {
        let (mut left, mut way) = (budget, shared.way.subscribe());
        let mut buffer = vec![0; 16 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok(false);
            }
            let _ = way.wait_for(|way| *way != Way::Hung).await;
            let delay_ms = shared.delay_ms.load(Ordering::Relaxed);
            if delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            let passes = (read as u64).min(left);
            to_client.write_all(&buffer[..passes as usize]).await?;
            left -= passes;
            if left == 0 {
                return Ok(true);
            }
        }
    };
    let up = async {
        let mut way = shared.way.subscribe();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return Ok(false);
            }
            let _ = way.wait_for(|way| *way != Way::Hung).await;
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        ended = down => ended,
        ended = up => ended,
    }
}
