//! Expressions: SQL and Rust accept the same ones.

use flyball::cron::Timing;

use crate::support::database;

/// Fields of every form, valid and invalid, in each of the six positions, and expressions that are
/// valid or invalid as a whole.
fn expressions() -> Vec<String> {
    const FIELDS: &[&str] = &[
        "*",
        "?",
        "0",
        "1",
        "00",
        "007",
        "5",
        "6",
        "7",
        "8",
        "12",
        "13",
        "23",
        "24",
        "31",
        "32",
        "59",
        "60",
        "999999999999",
        "-1",
        "+1",
        "1.5",
        "x",
        "$",
        "\"",
        "ü",
        "*/1",
        "*/2",
        "*/6",
        "*/7",
        "*/11",
        "*/12",
        "*/23",
        "*/24",
        "*/30",
        "*/31",
        "*/59",
        "*/60",
        "*/90",
        "*/0",
        "*/",
        "*/x",
        "*/2/3",
        "/2",
        "x/2",
        "1/2",
        "7/2",
        "5/20",
        "1-5",
        "1-5/2",
        "5-1",
        "1-",
        "-5",
        "1-2-3",
        "5-7",
        "6-0",
        "7-7",
        "1-60",
        "x-5",
        "1,3",
        "1,,3",
        ",",
        "1,",
        "x,,1",
        "1-3,5,*/10",
        "JAN",
        "jan",
        "January",
        "janu",
        "JAN-MAR",
        "mar-jan",
        "sep/2",
        "MON",
        "monday",
        "mon-fri",
        "fri-sun",
        "sun-mon",
        "FRI/2",
        "L",
        "l",
        "1,L",
        "LL",
        "5L",
        "fril",
        "*L",
        "9L",
        "15W",
        "MON#2",
        "1#5",
        "7#1",
        "MON#6",
        "MON#0",
        "MON#",
        "#2",
        "MON#2L",
        "MON#+2",
        "MON#2#3",
        "8#2",
        "MON#1,FRI",
        "?,1",
        "*,1",
        "* *",
    ];
    let mut all: Vec<String> = Vec::new();
    for field in FIELDS {
        for place in 0..6 {
            let parts: Vec<&str> = (0..6)
                .map(|at| if at == place { *field } else { "*" })
                .collect();
            all.push(parts.join(" "));
            all.push(parts[1..].join(" "));
        }
    }
    for months in ["*", "2", "4,6,9,11", "feb-apr", "1"] {
        for days in ["*", "?", "29", "30", "31", "1,31", "*/30", "L", "30,L"] {
            for weekdays in [
                "*", "?", "MON", "MON#1", "MON#2", "MON#5", "5L", "*/6", "1,TUE#5",
            ] {
                all.push(format!("0 0 {days} {months} {weekdays}"));
            }
        }
    }
    let whole = [
        "",
        "  ",
        "*",
        "* * * *",
        "* * * * * * *",
        "@daily",
        "  @yearly ",
        "@hourly",
        "@Daily",
        "@reboot",
        "@every 5m",
        "@",
        "@daily *",
        "\t0  0 * *\n* ",
        "99 99 99 99 99 99",
        "0 0 99 * 99",
        "0 0 1 1 * 2026 *",
    ];
    all.extend(whole.map(str::to_owned));
    all.extend([
        "1,".repeat(128),
        "1,".repeat(129),
        format!("{} * * * *", "0".repeat(200)),
    ]);
    all
}

#[tokio::test]
async fn sql_and_rust_read_the_same_expressions_and_refuse_the_others_in_the_same_words() {
    let database = database().await;
    let all = expressions();
    let by_sql: Vec<Option<String>> =
        sqlx::query_scalar("select flyball.check_expression(e) from unnest($1::text[]) with ordinality as u(e, n) order by n")
            .bind(&all)
            .fetch_all(database.pool())
            .await
            .unwrap();

    let by_rust: Vec<Option<String>> = all
        .iter()
        .map(|text| Timing::new(text, "UTC").err().map(|bad| bad.message))
        .collect();

    let fine = by_rust.iter().filter(|output| output.is_none()).count();
    assert!(
        (200..all.len() - 200).contains(&fine),
        "{fine} of {} are fine",
        all.len()
    );
    for ((text, by_sql), by_rust) in all.iter().zip(by_sql).zip(by_rust) {
        assert_eq!(by_sql, by_rust, "{text:?}");
    }
}
