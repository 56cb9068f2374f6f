//! The dry run of new rules over the messages of a day: `flyball notify dry-run`.

use std::time::Instant;

use serde_json::Value;

use crate::RecipientArgs;
use crate::report::{Report, count, median};
use crate::world::NotifyServers;

/// The goal, in seconds.
const GOAL_S: f64 = 60.0;

/// The rules to try: others than the defaults for each way in which a message ends.
const RULES: &str = "[categories.marketing]\nover_cap = \"hold\"\nvalid_for_s = 604800\ncaps.email = { per_day = \"1 per 24h\" }
[categories.product]\nover_cap = \"digest\"\ncaps.email = { per_day = \"3 per 1d\" }\nactor_caps = { per_day = \"2 per 1d\" }
over_actor_cap = \"digest:creator-activity\"\n";

/// The messages of 23 hours: 20 tenants, five messages for each recipient, every second
/// recipient with a profile, and each of six templates in a category of its own.
const FILL: &str = "
insert into flyball.job (id, lane_id, priority, max_attempts, cost, created_at, kind, throttle, key, tenant, args)
select (flyball.day_of(m.at) << 38) | (nextval('flyball.job_seq') << 1), 1, m.n % 3 + 1, 10, 1, m.at, 'notification', 'mail', '', 't' || m.who % 20,
    jsonb_build_object('channel', (array['email', 'email', 'sms', 'push'])[1 + m.who % 4], 'template', 'Hello {{ n }}',
        'category', (array['security', 'billing', 'marketing', 'product', 'product', 'transactional'])[1 + m.n % 6],
        'template_id', (array['code', 'receipt', 'sale', 'comment', 'post', 'note'])[1 + m.n % 6], 'data', jsonb_build_object('n', m.n),
        'actor', case when m.n % 6 = 4 then 'creator' || m.n % 50 end)
    || case when m.who % 2 = 0 then jsonb_build_object('recipient', m.who::text)
        else jsonb_build_object('to', (array['p' || m.who || '@example.com', 'p' || m.who || '@example.com', '+1555' || lpad(m.who::text, 7, '0'),
            lpad(m.who::text, 64, '0')])[1 + m.who % 4]) end
from (
    select n, (hashint8(n)::bigint & 2147483647) % greatest($1 / 5, 1) as who, now() - interval '23 hours' * (1 - n::float8 / $1) as at
    from generate_series(1, $1) n
) m";

const PROFILES: &str = "
insert into flyball.recipient (tenant, id, profile)
select 't' || n % 20, n::text, jsonb_build_object('time_zone', (array['Europe/Berlin', 'America/New_York', 'Asia/Kolkata'])[1 + n % 3],
    'addresses', jsonb_build_object('email', 'p' || n || '@example.com', 'sms', '+1555' || lpad(n::text, 7, '0'), 'push', lpad(n::text, 64, '0')),
    'quiet_hours', jsonb_build_object('push', jsonb_build_object('start', '22:00', 'end', '08:00')))
from generate_series(0, $1 / 5, 2) n";

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let pool = &world.queue.pool;
    let many = i64::try_from(cli.log)?;
    sqlx::query("select flyball.ensure_day(d) from generate_series(flyball.day_of(now()) - 1, flyball.day_of(now())) d")
        .execute(pool)
        .await?;
    for statement in [FILL, PROFILES] {
        sqlx::query(statement).bind(many).execute(pool).await?;
    }
    std::fs::write(dir.path().join("new.toml"), RULES)?;
    let columns = ["messages", "seconds", "messages/s", "other outcome"];
    let table = report.table("a dry run over the messages of a day", &columns);
    let (mut rounds, mut changed) = (Vec::new(), 0.0);
    for _ in 0..cli.rounds.max(1) {
        let begun = Instant::now();
        let words = ["notify", "dry-run", "--rules", "new.toml", "--json"];
        let shown: Value = serde_json::from_slice(&world.run(&words)?)?;
        rounds.push(begun.elapsed().as_secs_f64());
        let (read, unreadable) = (&shown["messages"], &shown["unreadable"]);
        let has_all = read.as_i64() == Some(many) && unreadable.as_i64() == Some(0);
        anyhow::ensure!(has_all, "{read} messages, {unreadable} unreadable");
        changed = shown["changed"].as_f64().unwrap_or(f64::NAN);
    }
    let seconds = median(rounds);
    let word = if seconds <= GOAL_S { "met" } else { "missed" };
    table.row([
        count(many as f64),
        format!("{seconds:.1} (≤ {GOAL_S:.0}: {word})"),
        count(many as f64 / seconds),
        count(changed),
    ]);
    Ok(())
}
