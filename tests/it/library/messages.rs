//! Messages and suppressions, as a program of one's own reads and changes them.

use flyball::jobs::{Attribution, Queue};
use flyball::messages::{Channel, Deliveries, NotificationFilter, Recipient};

use crate::support::database;

#[tokio::test]
async fn a_program_suppresses_a_recipient_and_reads_what_became_of_its_messages() {
    let database = database().await;
    let queue = Queue::new(database.pool().clone());
    let deliveries = Deliveries::new(&queue.pool);
    let ada = Recipient::parse(Channel::Email, "ada@example.com").unwrap();
    let signed = Attribution {
        by: "crm".to_owned(),
        why: "asked for it".to_owned(),
        ..Attribution::default()
    };

    assert!(deliveries.suppress(&ada, &signed).await.unwrap());
    assert!(!deliveries.suppress(&ada, &signed).await.unwrap());
    let found = deliveries.suppression(&ada).await.unwrap().unwrap();
    assert_eq!(
        (found.channel.as_str(), found.reason.as_str()),
        ("email", "asked for it")
    );
    assert_eq!(
        deliveries.suppressions(None, None, 10).await.unwrap(),
        [found]
    );
    assert!(deliveries.unsuppress(&ada, &signed).await.unwrap());
    assert!(deliveries.suppression(&ada).await.unwrap().is_none());

    let sent = "select * from flyball.notify('mail', '{\"channel\": \"email\", \"to\": \"ada@example.com\", \"body\": \"x\"}')";
    let id: i64 = sqlx::query_scalar(sent)
        .fetch_one(database.pool())
        .await
        .unwrap();
    let message = deliveries.find(id, None).await.unwrap().unwrap();
    assert_eq!(message.to, "a***@e***.com");
    let filter = NotificationFilter {
        channel: Some(Channel::Email),
        limit: 10,
        ..NotificationFilter::default()
    };
    assert_eq!(
        deliveries.page(&filter).await.unwrap().notifications,
        [message]
    );
}

#[tokio::test]
async fn a_program_registers_a_kind_and_lists_all() {
    let database = database().await;
    let queue = Queue::new(database.pool().clone());
    let registered = queue.register_kind("report", Some(false)).await.unwrap();
    assert_eq!(
        (registered.name.as_str(), registered.public),
        ("report", false)
    );
    let again = queue.register_kind("report", None).await.unwrap();
    assert_eq!(again, registered);
    assert!(queue.kinds().await.unwrap().contains(&registered));
}
