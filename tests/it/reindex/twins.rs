//! Changes of documents that have the same id in the index.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bson::doc;
use flyball::reindex::source::{DocumentSource, MongoSource};
use flyball::reindex::{Action, Document};
use serde_json::json;

use crate::reindex::mongodb::{args, collection, insert, open};
use crate::support::counterparts::MongoServer;

const SOON: Duration = Duration::from_secs(30);

/// An index that takes pages of changes, in which no id may have two.
#[derive(Default)]
struct Followed {
    position: String,
    documents: BTreeMap<String, String>,
    refused: Vec<String>,
}

impl Followed {
    /// Takes changes until the index has these documents.
    async fn until(&mut self, source: &MongoSource, expected: &[(&str, &str)]) {
        let all = async {
            while !self
                .documents
                .iter()
                .map(|(id, json)| (&**id, &**json))
                .eq(expected.iter().copied())
            {
                let page = source.changes(&self.position, 500).await.unwrap();
                self.position = page.position;
                self.take(page.documents);
            }
        };
        tokio::time::timeout(SOON, all).await.unwrap();
    }

    fn take(&mut self, changed: Vec<Document>) {
        let mut written = BTreeSet::new();
        for document in changed {
            let id = document.id.clone().unwrap();
            let is_refused = matches!(document.action, Action::Refuse(_));
            assert!(
                is_refused || written.insert(id.clone()),
                "{id} is written twice"
            );
            match document.action {
                Action::Store(json) => drop(self.documents.insert(id, json.to_string())),
                Action::Delete => drop(self.documents.remove(&id)),
                Action::Refuse(_) => self.refused.push(document.key[0].clone()),
            }
        }
    }
}

#[tokio::test]
async fn a_change_of_one_document_overwrites_and_deletes_no_other_with_the_same_id() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    let follow = args(json!({"follow": true}), json!({}));
    let (source, articles) = (open(&server, &follow).await, collection(&server));
    insert(&server, [doc! {"_id": "0", "n": 0}]).await;
    let mut index = Followed {
        position: source.position().await.unwrap(),
        ..Followed::default()
    };
    insert(&server, [doc! {"_id": "7", "n": 1}]).await;
    index.until(&source, &[("7", "{\"n\":1}")]).await;
    assert_eq!(index.refused, Vec::<String>::new());

    // A number comes: its document has the id, and the other is refused as in a scan.
    insert(&server, [doc! {"_id": 7, "n": 2}]).await;
    index.until(&source, &[("7", "{\"n\":2}")]).await;
    assert_eq!(index.refused, ["\"7\""]);

    // The number goes: the other has the id again.
    articles.delete_one(doc! {"_id": 7}).await.unwrap();
    index.until(&source, &[("7", "{\"n\":1}")]).await;

    // Both go, and one comes back as another type.
    articles.delete_one(doc! {"_id": "7"}).await.unwrap();
    insert(&server, [doc! {"_id": 7, "n": 3}]).await;
    articles.delete_one(doc! {"_id": 7}).await.unwrap();
    insert(&server, [doc! {"_id": 7.0, "n": 4}]).await;
    index.until(&source, &[("7", "{\"n\":4}")]).await;

    articles.delete_one(doc! {"_id": 7.0}).await.unwrap();
    index.until(&source, &[]).await;
}
