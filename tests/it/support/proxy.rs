//! A way to Postgres that breaks: connections end in the middle of whatever passes through them.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// A proxy on loopback. It ends with the runtime it was started on.
pub struct Proxy {
    /// The database's URL through it.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Bytes that a new connection may carry to the client before it is cut; 0 is without end.
    budget: AtomicU64,
    /// Counts the times at which everything was cut.
    cuts: watch::Sender<u64>,
    broken: AtomicUsize,
}

enum Upstream {
    Socket(PathBuf),
    Tcp(String, u16),
}

impl Proxy {
    /// A proxy to the server of this URL.
    pub async fn start(database_url: &str) -> Self {
        let options = PgConnectOptions::from_str(database_url).expect("the database's URL");
        let port = options.get_port();
        let upstream = Arc::new(match options.get_socket() {
            Some(dir) => Upstream::Socket(dir.join(format!(".s.PGSQL.{port}"))),
            None => Upstream::Tcp(options.get_host().to_owned(), port),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (user, database) = (options.get_username(), options.get_database().expect("the URL names a database"));
        let own = listener.local_addr().expect("an address").port();
        let url = format!("postgres://{user}@127.0.0.1:{own}/{database}?sslmode=disable");
        let shared = Arc::new(Shared { budget: AtomicU64::new(0), cuts: watch::Sender::new(0), broken: AtomicUsize::new(0) });
        let served = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, upstream.clone(), served.clone()));
            }
        });
        Self { url, shared }
    }

    /// Cuts every connection at once.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// New connections end by themselves after about so many bytes of answers, wherever that is; 0 for never.
    pub fn budget(&self, bytes: u64) {
        self.shared.budget.store(bytes, Ordering::Relaxed);
    }

    /// How many connections were broken so far.
    pub fn broken(&self) -> usize {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

async fn carry(client: TcpStream, upstream: Arc<Upstream>, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    cuts.mark_unchanged();
    let most = shared.budget.load(Ordering::Relaxed);
    let budget = if most == 0 { u64::MAX } else { most / 2 + rand::random_range(0..most) };
    let carried = async {
        match &*upstream {
            Upstream::Socket(path) => both(client, UnixStream::connect(path).await?, budget).await,
            Upstream::Tcp(host, port) => both(client, TcpStream::connect((host.as_str(), *port)).await?, budget).await,
        }
    };
    let broken = tokio::select! {
        ended = carried => matches!(ended, Ok(true)),
        _ = cuts.changed() => true,
    };
    shared.broken.fetch_add(usize::from(broken), Ordering::Relaxed);
}

/// Carries both ways until one side ends; true if the budget ended first.
async fn both<S>(client: TcpStream, server: S, budget: u64) -> std::io::Result<bool>
where
    S: AsyncRead + AsyncWrite,
{
    let _ = client.set_nodelay(true);
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let down = async {
        let mut left = budget;
        let mut buffer = vec![0; 16 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok(false);
            }
            let passes = (read as u64).min(left);
            to_client.write_all(&buffer[..passes as usize]).await?;
            left -= passes;
            if left == 0 {
                return Ok(true);
            }
        }
    };
    tokio::select! {
        ended = down => ended,
        ended = tokio::io::copy(&mut from_client, &mut to_server) => ended.map(|_| false),
    }
}
