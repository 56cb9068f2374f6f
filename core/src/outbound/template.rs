//! Bodies from templates: text with places that the job's data fill in. A template's work is
//! bounded, because any user with permission to enqueue can write it.
//!
//! A template can take values from `data`, choose (`if`) and repeat (`for`), and pass values
//! through a few filters. It cannot make a text or a list grow: there are no assignments, no blocks
//! that capture output and no operators that join or repeat, so that all growth goes through the
//! output, which is bounded. Work is counted in steps, in the bytes of values that are read, and in
//! time. Each is bounded, and every loop checks the clock, so that no rendering exceeds its time by
//! much.

mod budget;
mod values;

use std::borrow::Cow;
use std::io::Write;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Rest;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests,
};

use self::budget::{BoundedWriter, RenderBudget};
pub use self::budget::{MAX_OUTPUT_BYTES, MAX_STEPS, MAX_WORK_BYTES};
use self::values::watched;

/// Deepest nesting.
const MAX_DEPTH: usize = 50;

/// Statements that a template may use.
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

/// Checks a template before it has any data.
pub fn check(template: &str) -> Result<(), String> {
    check_words(template)?;
    let environment = environment(&RenderBudget::new(|| false), AutoEscape::None);
    environment
        .template_from_named_str(NAME, template)
        .map(drop)
        .map_err(|error| describe_error(&error))
}

/// Renders a template with data, which is not escaped. It ends soon after `is_over` returns true.
pub fn render(
    template: &str,
    data: &serde_json::Value,
    is_over: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<String, String> {
    render_as(template, data, AutoEscape::None, is_over)
}

/// Renders a template of HTML like [`render`]. What the data say is text there: markup in them is
/// escaped, unless the filter `safe` follows the value.
pub fn render_html(
    template: &str,
    data: &serde_json::Value,
    is_over: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<String, String> {
    render_as(template, data, AutoEscape::Html, is_over)
}

fn render_as(
    template: &str,
    data: &serde_json::Value,
    escape: AutoEscape,
    is_over: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<String, String> {
    check_words(template)?;
    let work = RenderBudget::new(is_over);
    let environment = environment(&work, escape);
    let template = environment
        .template_from_named_str(NAME, template)
        .map_err(|error| describe_error(&error))?;
    let mut output = BoundedWriter::new(&work);
    let rendered = template
        .render_captured_to(watched(data, &work), &mut output)
        .map(drop);
    // An output that was cut short may look complete, or like another error.
    if let Some(why) = work.ended() {
        return Err(why);
    }
    rendered.map_err(|error| describe_error(&error))?;
    String::from_utf8(output.bytes).map_err(|_| "produced something that is not a text".to_owned())
}

/// The name of a template in errors.
const NAME: &str = "template";

fn environment(work: &RenderBudget, escape: AutoEscape) -> Environment<'static> {
    let mut environment = Environment::empty();
    let (of_length, of_lower, of_upper) = (work.clone(), work.clone(), work.clone());
    let of_safe = work.clone();
    let (of_trim, of_join, of_json) = (work.clone(), work.clone(), work.clone());
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(move |_| escape.clone());
    environment.add_filter("default", filters::default);
    environment.add_filter("length", move |value: &Value| {
        of_length.charge(value.as_str().map_or(1, str::len))?;
        filters::length(value)
    });
    environment.add_filter("lower", move |text: Cow<'_, str>| {
        of_lower.charge(text.len()).map(|()| text.to_lowercase())
    });
    environment.add_filter("upper", move |text: Cow<'_, str>| {
        of_upper.charge(text.len()).map(|()| text.to_uppercase())
    });
    environment.add_filter(
        "trim",
        move |text: Cow<'_, str>, chars: Option<Cow<'_, str>>| {
            of_trim.charge(
                text.len()
                    .saturating_mul(chars.as_ref().map_or(1, |chars| chars.len().max(1))),
            )?;
            let set: Option<Vec<char>> = chars.map(|chars| chars.chars().collect());
            let trimmed = set.map_or_else(|| text.trim(), |set| text.trim_matches(set.as_slice()));
            Ok::<_, Error>(trimmed.to_owned())
        },
    );
    environment.add_filter("join", move |list: &Value, between: Rest<String>| {
        join(&of_join, list, between)
    });
    environment.add_filter("tojson", move |value: &Value| tojson(&of_json, value));
    environment.add_filter("safe", move |text: Cow<'_, str>| {
        of_safe.charge(text.len())?;
        Ok::<_, Error>(Value::from_safe_string(text.into_owned()))
    });
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment
}

/// Refuses syntax that could make values grow.
fn check_words(template: &str) -> Result<(), String> {
    let mut begins = false;
    let mut statement = "";
    let mut open = Vec::new();
    for token in tokenize(template, false, SyntaxConfig::default()) {
        let (token, span) = token.map_err(|error| describe_error(&error))?;
        let at = |what: String| Err(format!("line {}: {what}", span.start_line));
        match token {
            Token::BlockStart => begins = true,
            Token::VariableStart => statement = "",
            Token::Ident(word) if begins => {
                if !STATEMENTS.contains(&word) {
                    let word: String = word.chars().take(32).collect();
                    return at(format!(
                        "the statement {word} is not supported; allowed are if, elif, else and for"
                    ));
                }
                (begins, statement) = (false, word);
            }
            Token::Ident("recursive") if statement == "for" => {
                return at("a for cannot be recursive".to_owned());
            }
            Token::BracketOpen | Token::BraceOpen => open.push(token),
            Token::BracketClose | Token::BraceClose => drop(open.pop()),
            Token::Colon if matches!(open.last(), Some(Token::BracketOpen)) => {
                return at("slices such as a[1:2] are not supported".to_owned());
            }
            Token::Plus | Token::Mul | Token::Pow | Token::Tilde => {
                return at(format!(
                    "the operator {token} is not supported; write values one after another"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Joins a list into one text.
fn join(work: &RenderBudget, list: &Value, between: Rest<String>) -> Result<String, Error> {
    let between = between.first().map_or("", String::as_str);
    let mut output = BoundedWriter::new(work);
    for (place, item) in list.try_iter()?.enumerate() {
        let between = if place > 0 { between } else { "" };
        write!(output, "{between}{item}").map_err(|_| too_long())?;
    }
    String::from_utf8(output.bytes).map_err(|_| Error::from(ErrorKind::BadSerialization))
}

/// Writes any value as JSON.
fn tojson(work: &RenderBudget, value: &Value) -> Result<String, Error> {
    let mut output = BoundedWriter::new(work);
    serde_json::to_writer(&mut output, value).map_err(|error| match error.is_io() {
        true => too_long(),
        false => Error::from(ErrorKind::BadSerialization),
    })?;
    String::from_utf8(output.bytes).map_err(|_| Error::from(ErrorKind::BadSerialization))
}

fn too_long() -> Error {
    Error::new(ErrorKind::WriteFailure, "too long")
}

/// Returns the error's message: fault and line, without any of the data.
fn describe_error(error: &Error) -> String {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => format!("takes more than {MAX_STEPS} steps"),
        ErrorKind::WriteFailure => format!("makes more than {MAX_OUTPUT_BYTES} bytes"),
        // The details of these name parts of the template.
        ErrorKind::SyntaxError
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction => {
            format!("{}: {}", error.kind(), error.detail().unwrap_or_default())
        }
        kind => kind.to_string(),
    };
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

#[cfg(test)]
mod unit {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::*;

    fn render(template: &str, data: &serde_json::Value) -> Result<String, String> {
        super::render(template, data, || false)
    }

    #[test]
    fn work_is_counted_in_bytes_wherever_it_is_done() {
        let rows: Vec<u32> = (0..10_000).collect();
        let data =
            json!({"big": "\"".repeat(120_000), "r": rows, "texts": vec!["x".repeat(1000); 200]});
        for hostile in [
            "{% for i in r %}{{ big|tojson|tojson|length }}{% endfor %}",
            "{% for i in r %}{{ big|lower|upper|lower|length }}{% endfor %}",
            "{% for i in r %}{{ big|trim|length }}{% endfor %}",
            "{% for i in r %}{{ texts|join|length }}{% endfor %}",
            "{% for i in r %}{% if big == texts %}{% endif %}{% endfor %}",
            "{% for i in r %}{% if texts == r %}{% endif %}{% if r == texts %}{% endif %}{% if texts == texts %}{% endif %}{{ r|tojson|length }}{% endfor %}",
        ] {
            let began = std::time::Instant::now();
            let error = render(hostile, &data).unwrap_err();
            assert!(
                error.contains("reads and writes more than") || error.contains("steps"),
                "{hostile}: {error}"
            );
            assert!(
                began.elapsed() < std::time::Duration::from_secs(60),
                "{hostile}: {:?}",
                began.elapsed()
            );
        }
    }

    #[test]
    fn whatever_repeats_ends_when_the_time_is_over() {
        let rows: Vec<u32> = (0..40_000).collect();
        let data = json!({"big": "x".repeat(1000), "r": rows});
        for hostile in [
            "{% for i in r %}{% if r == r %}{% endif %}{% endfor %}",
            "{% for i in r %}{{ i }}{% endfor %}",
            "{{ r|tojson }}",
            "{{ r|join(',') }}",
            "{% for i in r %}{% if big == 'x' %}{% endif %}{% endfor %}",
        ] {
            let (steps, counted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (clock, all) = (steps.clone(), counted.clone());
            let is_over = move || {
                all.fetch_add(1, Ordering::Relaxed);
                clock.fetch_add(1, Ordering::Relaxed) >= 100
            };
            assert_eq!(
                super::render(hostile, &data, is_over).unwrap_err(),
                "takes too long",
                "{hostile}"
            );
            assert!(
                counted.load(Ordering::Relaxed) < 1000,
                "{hostile}: it went on"
            );
        }
    }

    #[test]
    fn data_looks_as_it_is() {
        let data = json!({"list": [1, 2.5, null, true, "a", {"b": [1]}], "map": {"z": 1, "a": {"n": "x"}}});
        for (template, expected) in [
            ("{{ list|tojson }}", r#"[1,2.5,null,true,"a",{"b":[1]}]"#),
            ("{{ map|tojson }}", r#"{"a":{"n":"x"},"z":1}"#),
            (
                "{% for name in map %}{{ name }}={{ map[name]|tojson }};{% endfor %}",
                r#"a={"n":"x"};z=1;"#,
            ),
            (
                "{{ list[0] }}{{ list[5].b[0] }}{{ map.a.n }} {{ list|length }} {{ map|length }}",
                "11x 6 2",
            ),
            (
                "{% for i in list %}{{ loop.index }}/{{ loop.length }} {% endfor %}",
                "1/6 2/6 3/6 4/6 5/6 6/6 ",
            ),
            (
                "{% if 'a' in list and 'z' in map and 7 not in list %}yes{% endif %}",
                "yes",
            ),
            (
                "{% if map.a == map.a and list != map %}yes{% endif %}",
                "yes",
            ),
        ] {
            assert_eq!(
                render(template, &data).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn values_choices_loops_and_filters_work() {
        let data = json!({"name": "Ada <b>", "items": [{"id": 1}, {"id": 2}], "note": null, "tags": ["a", "b"]});
        let cases = [
            ("hello {{ name }}", "hello Ada <b>"),
            (
                "{% for item in items %}{{ item.id }}{% if not loop.last %},{% endif %}{% endfor %}",
                "1,2",
            ),
            (
                "{\"who\": {{ name|tojson }}, \"all\": {{ items|tojson }}}",
                "{\"who\": \"Ada <b>\", \"all\": [{\"id\":1},{\"id\":2}]}",
            ),
            ("{{ missing|default('none') }}", "none"),
            ("{% if note is none %}-{% else %}{{ note }}{% endif %}", "-"),
            (
                "{{ tags|join('+') }} {{ name|upper }} {{ tags|length }}",
                "a+b ADA <B> 2",
            ),
            (
                "{{ 'a + b * c ~ d' }} {# + #} + * ~",
                "a + b * c ~ d  + * ~",
            ),
            ("{{ name|safe }}", "Ada <b>"),
        ];
        for (template, expected) in cases {
            assert_eq!(check(template), Ok(()), "{template}");
            assert_eq!(
                render(template, &data).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn markup_in_data_is_text_in_html() {
        let data =
            json!({"name": "<a href='//x'>", "n": 7, "tags": ["<i>", "b"], "ours": "<b>&amp;</b>"});
        let html = |template: &str| super::render_html(template, &data, || false);
        for (template, expected) in [
            (
                "<p>{{ name }} {{ n }}</p>",
                "<p>&lt;a href=&#x27;&#x2f;&#x2f;x&#x27;&gt; 7</p>",
            ),
            (
                "{% for tag in tags %}<li>{{ tag }}{% endfor %}{{ tags|join('&') }}",
                "<li>&lt;i&gt;<li>b&lt;i&gt;&amp;b",
            ),
            ("{{ tags|tojson }}", "[&quot;&lt;i&gt;&quot;,&quot;b&quot;]"),
            ("{{ ours|safe }}", "<b>&amp;</b>"),
        ] {
            assert_eq!(html(template).as_deref(), Ok(expected), "{template}");
        }
        let long = json!({ "long": "<".repeat(300_000) });
        let error = super::render_html("{{ long }}", &long, || false).unwrap_err();
        assert!(error.contains("makes more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn what_cannot_be_parsed_or_could_grow_is_refused_before_any_data() {
        let cases = [
            ("a\n{{ name", "line 2: syntax error"),
            ("{% if a %}", "line 1: syntax error"),
            ("{{ name|nosuch }}", "unknown filter"),
            ("{% set a = 1 %}", "the statement set is not supported"),
            (
                "{% with a = 1 %}{% endwith %}",
                "the statement with is not supported",
            ),
            (
                "{% macro a() %}{% endmacro %}",
                "the statement macro is not supported",
            ),
            (
                "{% include 'x' %}",
                "the statement include is not supported",
            ),
            (
                "{% filter upper %}a{% endfilter %}",
                "the statement filter is not supported",
            ),
            ("{{ a ~ a }}", "the operator `~` is not supported"),
            ("{{ 'a' * 9 }}", "the operator `*` is not supported"),
            ("\n{{ a + a }}", "line 2: the operator `+` is not supported"),
            ("{{ a[1:] }}", "slices such as"),
            (
                "{% for a in b recursive %}{{ loop(a) }}{% endfor %}",
                "a for cannot be recursive",
            ),
        ];
        for (template, expected) in cases {
            let error = check(template)
                .and_then(|()| render(template, &json!({})).map(drop))
                .unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn output_steps_and_depth_are_bounded() {
        let long = "x".repeat(100_000);
        let rows: Vec<u32> = (0..1000).collect();
        let data = json!({"long": long, "rows": rows});
        let many = format!("{{{{ [{}]|join }}}}", vec!["long"; 1000].join(","));
        let json = format!("{{{{ [{}]|tojson }}}}", vec!["long"; 1000].join(","));
        let nested = "{% for a in rows %}{% for b in rows %}{% for c in rows %}{% endfor %}{% endfor %}{% endfor %}";
        let cases = [
            (
                "{% for row in rows %}{{ long }}{% endfor %}",
                "makes more than 1048576 bytes",
            ),
            (&many, "makes more than 1048576 bytes"),
            (&json, "makes more than 1048576 bytes"),
            (nested, "takes more than 50000 steps"),
        ];
        for (template, expected) in cases {
            let error = render(template, &data).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let deep = format!(
            "{}{}",
            "{% for a in rows %}".repeat(400),
            "{% endfor %}".repeat(400)
        );
        assert!(render(&deep, &data).is_err());
    }

    #[test]
    fn errors_name_the_line_and_none_of_the_data() {
        let data = json!({"secret": "very-secret-token"});

        let undefined = render("a\nb {{ secrte }}", &data).unwrap_err();
        let wrong = render("{% for x in secret.length %}{% endfor %}", &data).unwrap_err();

        assert_eq!(undefined, "line 2: undefined value");
        assert!(!wrong.contains("very-secret-token"), "{wrong}");
    }
}
