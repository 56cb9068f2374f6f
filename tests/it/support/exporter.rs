//! An exporter with one load metric, which the tests' Prometheus scrapes.

use std::sync::{Arc, Mutex};

use axum::routing::get;

use super::{stack, unique};

/// A page with one metric.
pub struct Exporter {
    pub page: String,
    /// The unique name of the metric.
    pub metric: String,
    load: Arc<Mutex<f64>>,
}

impl Exporter {
    /// Starts an exporter with this load and registers it as a scrape target.
    pub async fn start(load: f64) -> Self {
        let (metric, load) = (format!("load_{}", unique()), Arc::new(Mutex::new(load)));
        let (name, shown) = (metric.clone(), load.clone());
        let answer = move || {
            let (name, shown) = (name.clone(), shown.clone());
            async move { format!("{name} {}\n", shown.lock().expect("the load")) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            axum::serve(listener, axum::Router::new().route("/metrics", get(answer))).await
        });
        if let Some(targets) = &stack().await.targets_dir {
            let target = format!(r#"[{{"targets": ["{address}"]}}]"#);
            std::fs::write(targets.join(format!("{metric}.json")), target)
                .expect("a scrape target");
        }
        Self {
            page: format!("http://{address}/metrics"),
            metric,
            load,
        }
    }

    /// Changes the load on the page.
    pub fn show(&self, load: f64) {
        *self.load.lock().expect("the load") = load;
    }

    /// Returns a policy signal for the metric, both read from Prometheus and probed.
    pub fn signal(&self) -> String {
        let (page, metric) = (&self.page, &self.metric);
        format!(
            "[[signal]]\nname = \"load\"\nquery = \"{metric}\"\nsetpoint = 1.0\nlag_s = 0\n\
             probe = \"{page}\"\nprobe_metric = \"{metric}\"\n"
        )
    }
}
