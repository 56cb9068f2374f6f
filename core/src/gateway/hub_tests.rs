use super::*;
use crate::gateway::outbox::CONTROL_MAX;

fn stored(tenant: &str, channel: &str, offset: i64) -> StoredMessage {
    StoredMessage {
        seq: offset,
        tenant: tenant.to_owned(),
        channel: ChannelName::stored(channel),
        epoch: 1,
        offset,
        id: offset,
        data: offset.to_string(),
    }
}

fn subscribed(hub: &Hub, tenant: &str, channel: &str) -> Arc<Peer> {
    let peer = hub.join(&tenant.into());
    let name = ChannelName::stored(channel);
    hub.subscribe(&peer, &name);
    peer.state().subscription(&name).unwrap().join(1, 1, 0);
    peer
}

fn waiting(peer: &Peer) -> usize {
    let mut state = peer.state();
    std::iter::from_fn(|| state.outbox.pop()).count()
}

#[test]
fn a_message_goes_to_the_subscribers_of_its_tenant_only() {
    let hub = Hub::default();
    let (own, foreign) = (subscribed(&hub, "a", "x"), subscribed(&hub, "b", "x"));
    let other = subscribed(&hub, "a", "y");
    assert_eq!(hub.deliver(&stored("a", "x", 1)), 1);
    assert_eq!(
        [&own, &foreign, &other].map(|peer| waiting(peer)),
        [1, 0, 0]
    );
    hub.leave(&own);
    assert_eq!(hub.deliver(&stored("a", "x", 2)), 0);
}

#[test]
fn a_reader_without_room_falls_behind_and_the_others_get_everything() {
    let hub = Hub::default();
    let (slow, fast) = (subscribed(&hub, "a", "x"), subscribed(&hub, "a", "x"));
    let mut got = 0;
    for offset in 1..=1000 {
        hub.deliver(&stored("a", "x", offset));
        got += waiting(&fast);
    }
    assert_eq!(got, 1000);
    let behind = slow.state().subscriptions[0].behind();
    assert_eq!((behind, waiting(&slow)), (Some(257), 256));
}

#[test]
fn where_a_channel_has_no_history_its_messages_have_no_offsets() {
    let hub = Hub::default();
    let (peer, x) = (hub.join(&"a".into()), ChannelName::stored("x"));
    hub.subscribe(&peer, &x);
    peer.state().join(&x, None);
    hub.deliver(&stored("a", "x", 0));
    // Another process keeps them.
    hub.deliver(&stored("a", "x", 7));
    for id in ["0", "7"] {
        let frame = peer.state().outbox.pop().unwrap();
        let frame: serde_json::Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!(frame["id"], id);
        assert!(frame.get("offset").is_none() && frame.get("epoch").is_none());
    }
}

#[test]
fn readers_that_are_behind_take_turns() {
    let hub = Hub::default();
    let peer = subscribed(&hub, "a", "x");
    for name in ["y", "z"] {
        hub.subscribe(&peer, &ChannelName::stored(name));
    }
    for name in ["x", "z"] {
        let name = ChannelName::stored(name);
        peer.state().subscription(&name).unwrap().join(1, 1, 9);
    }
    let mut turns = Vec::new();
    for _ in 0..4 {
        let behind = peer.state().behind().unwrap();
        // More comes than the reader takes.
        peer.state().caught_up(&behind, behind.next);
        turns.push((behind.channel.to_string(), behind.next));
    }
    let wanted = [("x", 1), ("z", 1), ("x", 2), ("z", 2)];
    assert_eq!(turns, wanted.map(|(name, next)| (name.to_owned(), next)));
    hub.unsubscribe(&peer, &ChannelName::stored("z"));
    assert_eq!(peer.state().behind().map(|behind| behind.next), Some(3));
}

#[test]
fn what_waits_of_a_replaced_subscription_comes_from_the_history_in_its_place() {
    let hub = Hub::default();
    let peer = subscribed(&hub, "a", "x");
    let (x, y) = (ChannelName::stored("x"), ChannelName::stored("y"));
    hub.subscribe(&peer, &y);
    peer.state().subscription(&y).unwrap().join(1, 1, 0);
    hub.deliver(&stored("a", "x", 1));
    hub.deliver(&stored("a", "y", 1));
    hub.subscribe(&peer, &x);
    peer.state().subscription(&x).unwrap().join(1, 1, 1);
    assert_eq!(waiting(&peer), 1);
    let behind = peer.state().behind().unwrap();
    assert_eq!((behind.channel, behind.next), (x, 1));
}

#[test]
fn nothing_comes_of_a_channel_after_the_end_of_its_subscription() {
    let hub = Hub::default();
    let peer = subscribed(&hub, "a", "x");
    let x = ChannelName::stored("x");
    hub.deliver(&stored("a", "x", 1));
    hub.deliver(&stored("a", "x", 0));
    assert!(hub.unsubscribe(&peer, &x) && !hub.unsubscribe(&peer, &x));
    assert_eq!((waiting(&peer), hub.deliver(&stored("a", "x", 2))), (0, 0));
}

#[test]
fn a_limit_warns_each_connection_once_a_second() {
    let hub = Hub::default();
    let peer = subscribed(&hub, "a", "x");
    assert_eq!(hub.limit("a", Duration::from_millis(700)), 1);
    assert_eq!(hub.limit("a", Duration::from_millis(700)), 0);
    assert_eq!(hub.limit("b", Duration::from_millis(700)), 0);
    assert!(peer.limited_until().is_some() && waiting(&peer) == 1);
}

#[test]
fn a_wait_is_told_as_it_is_and_noted_for_a_second_at_most() {
    let hub = Hub::default();
    let peer = subscribed(&hub, "a", "x");
    assert_eq!(hub.limit("a", Duration::from_millis(54_300)), 1);
    assert!(format!("{:?}", peer.state().outbox.pop()).contains("Retry in 55s."));
    assert!(peer.limited_until() <= Some(Instant::now() + WARNING_INTERVAL));
}

#[test]
fn the_readers_of_an_inbox_alone_are_told_that_it_is_gone() {
    let hub = Hub::default();
    let own = subscribed(&hub, "a", "$inbox/ada");
    let others = [
        subscribed(&hub, "b", "$inbox/ada"),
        subscribed(&hub, "a", "$inbox/bob"),
        subscribed(&hub, "a", "ada"),
    ];
    assert_eq!(hub.inboxes().len(), 3);
    assert_eq!(hub.report_gap("a", &ChannelName::of_inbox("ada")), 1);
    assert_eq!(hub.report_gap("c", &ChannelName::of_inbox("ada")), 0);
    assert_eq!(waiting(&own), 1);
    assert!(others.iter().all(|peer| waiting(peer) == 0));
}

#[test]
fn no_older_message_follows_the_gap_of_an_inbox_that_is_gone() {
    let hub = Hub::default();
    let (peer, ada) = (
        subscribed(&hub, "a", "$inbox/ada"),
        ChannelName::of_inbox("ada"),
    );
    let orders = ChannelName::stored("orders");
    hub.subscribe(&peer, &orders);
    peer.state().subscription(&orders).unwrap().join(1, 1, 0);
    for channel in ["$inbox/ada", "orders"] {
        hub.deliver(&stored("a", channel, 1));
    }
    hub.report_gap("a", &ada);
    hub.deliver(&stored("a", "$inbox/ada", 2));
    let frames = std::iter::from_fn(|| peer.state().outbox.pop());
    let told: Vec<String> = frames
        .map(|frame| serde_json::from_slice::<serde_json::Value>(&frame).unwrap())
        .map(|frame| format!("{} {}", frame["type"], frame["channel"]))
        .collect();
    let wanted = [
        r#""gap" "$inbox/ada""#,
        r#""message" "orders""#,
        r#""message" "$inbox/ada""#,
    ];
    assert_eq!(told, wanted);
}

#[test]
fn a_gap_without_room_comes_after_the_frames_of_control() {
    let hub = Hub::default();
    let (peer, ada) = (
        subscribed(&hub, "a", "$inbox/ada"),
        ChannelName::of_inbox("ada"),
    );
    while peer.state().outbox.push_control(server_frame::ping()) {}
    hub.report_gap("a", &ada);
    assert_eq!(waiting(&peer), CONTROL_MAX);
    assert_eq!(peer.state().take_gaps(), [(ada, 1)]);
}

#[test]
fn nothing_is_left_of_connections_that_have_gone() {
    let hub = Hub::default();
    let peers: Vec<_> = (0..10).map(|_| subscribed(&hub, "a", "x")).collect();
    assert_eq!(hub.reports(), [(Arc::from("a"), 10, 0)]);
    peers.iter().for_each(|peer| hub.leave(peer));
    assert!(hub.reports().is_empty() && hub.channels.iter().all(|part| part.lock().is_empty()));
}
