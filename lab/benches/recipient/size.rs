//! The disk that the state of recipients takes: sends, claims, profiles.

use crate::RecipientArgs;
use crate::report::{Report, count};
use crate::world::NotifyServers;

/// The goal for a recipient and category with three sends, with its key, in bytes.
const GOAL: f64 = 153.0;

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let pool = &world.queue.pool;
    let many = i64::try_from(cli.recipients)?;
    for statement in [
        "insert into flyball.cap (recipient, list, sent)
         select md5(n::text)::uuid, 7, array[1, 2, 3] from generate_series(1, $1) n",
        "insert into flyball.dedup (claim, job_id, at_s)
         select ('x' || left(md5(n::text), 16))::bit(64)::bigint, n, 1 from generate_series(1, $1) n",
        "insert into flyball.recipient (tenant, id, profile)
         select 'acme', n::text, jsonb_build_object('time_zone', 'Europe/Berlin',
             'addresses', jsonb_build_object('email', 'person' || n || '@example.com'),
             'quiet_hours', jsonb_build_object('email', jsonb_build_object('start', '22:00', 'end', '08:00')))
         from generate_series(1, $1) n",
    ] {
        sqlx::query(statement).bind(many).execute(pool).await?;
    }
    let columns = ["state", "bytes each", "for 100 million, GB"];
    let table = report.table(&format!("{} recipients", count(many as f64)), &columns);
    for (name, relation, goal) in [
        ("a list with three sends", "cap", Some(GOAL)),
        ("a dedup claim", "dedup", None),
        ("a profile with quiet hours", "recipient", None),
    ] {
        let bytes: f64 = sqlx::query_scalar(
            "select sum(pg_total_relation_size(c.oid))::float8 from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where n.nspname = 'flyball' and c.relkind = 'r' and (c.relname = $1 or c.relname ~ ('^' || $1 || '_[0-9]+$'))",
        )
        .bind(relation)
        .fetch_one(pool)
        .await?;
        let each = bytes / many as f64;
        let goal = goal.map_or_else(String::new, |goal| {
            let word = if each <= goal { "met" } else { "missed" };
            format!(" (≤ {goal:.0}: {word})")
        });
        table.row([
            name.to_owned(),
            format!("{each:.0}{goal}"),
            format!("{:.1}", each * 1e8 / 1e9),
        ]);
    }
    Ok(())
}
