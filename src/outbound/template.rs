//! Bodies from templates: text with places that the job's data fill in. What a template may do is bounded, because whoever may
//! enqueue a job writes it.
//!
//! A template can take values from `data`, choose (`if`) and repeat (`for`), and pass values through a few filters. It cannot
//! make a text or a list grow: there are no assignments, no blocks that catch output and no operators that join or repeat, so
//! that all growth goes through the output, which is bounded. Work is counted in steps, and the steps are bounded.

use std::io::{self, Write};

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests};

/// Largest body that a template may make, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 1024 * 1024;

/// Most steps of one rendering.
pub const MAX_STEPS: u64 = 50_000;

/// Deepest nesting.
const MAX_DEPTH: usize = 50;

/// Statements that a template may use.
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

/// What is wrong with a template before it has met any data.
pub fn check(template: &str) -> Result<(), String> {
    check_words(template)?;
    environment().template_from_named_str(NAME, template).map(drop).map_err(|error| told(&error))
}

/// The text that a template makes of data, or why it cannot be made.
pub fn render(template: &str, data: &serde_json::Value) -> Result<String, String> {
    check_words(template)?;
    let environment = environment();
    let template = environment.template_from_named_str(NAME, template).map_err(|error| told(&error))?;
    let mut output = Bounded::default();
    template.render_captured_to(Value::from(Serde(data)), &mut output).map_err(|error| told(&error))?;
    String::from_utf8(output.0).map_err(|_| "made something that is no text".to_owned())
}

/// The name under which errors speak of a template; it has no ending, so nothing is escaped.
const NAME: &str = "template";

fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.add_filter("default", filters::default);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("upper", filters::upper);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("join", join);
    environment.add_filter("tojson", tojson);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment
}

/// Refuses what could make values grow.
fn check_words(template: &str) -> Result<(), String> {
    let mut begins = false;
    let mut statement = "";
    for token in tokenize(template, false, SyntaxConfig::default()) {
        let (token, span) = token.map_err(|error| told(&error))?;
        let at = |what: String| Err(format!("line {}: {what}", span.start_line));
        match token {
            Token::BlockStart => begins = true,
            Token::VariableStart => statement = "",
            Token::Ident(word) if begins => {
                if !STATEMENTS.contains(&word) {
                    let word: String = word.chars().take(32).collect();
                    return at(format!("the statement {word} is not available; statements are if, elif, else and for"));
                }
                (begins, statement) = (false, word);
            }
            Token::Ident("recursive") if statement == "for" => return at("a for cannot be recursive".to_owned()),
            Token::Plus | Token::Mul | Token::Pow | Token::Tilde => {
                return at(format!("the operator {token} is not available; write values one after another"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A list as one text.
fn join(list: &Value, between: Rest<String>) -> Result<String, Error> {
    let between = between.first().map_or("", String::as_str);
    let mut output = Bounded::default();
    for (place, item) in list.try_iter()?.enumerate() {
        let between = if place > 0 { between } else { "" };
        write!(output, "{between}{item}").map_err(|_| too_long())?;
    }
    String::from_utf8(output.0).map_err(|_| Error::from(ErrorKind::BadSerialization))
}

/// Any value as JSON.
fn tojson(value: &Value) -> Result<String, Error> {
    let mut output = Bounded::default();
    serde_json::to_writer(&mut output, value).map_err(|error| match error.is_io() {
        true => too_long(),
        false => Error::from(ErrorKind::BadSerialization),
    })?;
    String::from_utf8(output.0).map_err(|_| Error::from(ErrorKind::BadSerialization))
}

fn too_long() -> Error {
    Error::new(ErrorKind::WriteFailure, "too long")
}

/// The error in words: what and where, without any of the data.
fn told(error: &Error) -> String {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => format!("takes more than {MAX_STEPS} steps"),
        ErrorKind::WriteFailure => format!("makes more than {MAX_OUTPUT_BYTES} bytes"),
        // The words of these name what stands in the template.
        ErrorKind::SyntaxError | ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            format!("{}: {}", error.kind(), error.detail().unwrap_or_default())
        }
        kind => kind.to_string(),
    };
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

/// Takes so many bytes and no more.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod unit {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_choices_loops_and_filters_work() {
        let data = json!({"name": "Ada <b>", "items": [{"id": 1}, {"id": 2}], "note": null, "tags": ["a", "b"]});
        let cases = [
            ("hello {{ name }}", "hello Ada <b>"),
            ("{% for item in items %}{{ item.id }}{% if not loop.last %},{% endif %}{% endfor %}", "1,2"),
            (
                "{\"who\": {{ name|tojson }}, \"all\": {{ items|tojson }}}",
                "{\"who\": \"Ada <b>\", \"all\": [{\"id\":1},{\"id\":2}]}",
            ),
            ("{{ missing|default('none') }}", "none"),
            ("{% if note is none %}-{% else %}{{ note }}{% endif %}", "-"),
            ("{{ tags|join('+') }} {{ name|upper }} {{ tags|length }}", "a+b ADA <B> 2"),
            ("{{ 'a + b * c ~ d' }} {# + #} + * ~", "a + b * c ~ d  + * ~"),
        ];
        for (template, expected) in cases {
            assert_eq!(check(template), Ok(()), "{template}");
            assert_eq!(render(template, &data).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_cannot_be_parsed_or_could_grow_is_refused_before_any_data() {
        let cases = [
            ("a\n{{ name", "line 2: syntax error"),
            ("{% if a %}", "line 1: syntax error"),
            ("{{ name|nosuch }}", "unknown filter"),
            ("{% set a = 1 %}", "the statement set is not available"),
            ("{% with a = 1 %}{% endwith %}", "the statement with is not available"),
            ("{% macro a() %}{% endmacro %}", "the statement macro is not available"),
            ("{% include 'x' %}", "the statement include is not available"),
            ("{% filter upper %}a{% endfilter %}", "the statement filter is not available"),
            ("{{ a ~ a }}", "the operator `~` is not available"),
            ("{{ 'a' * 9 }}", "the operator `*` is not available"),
            ("\n{{ a + a }}", "line 2: the operator `+` is not available"),
            ("{% for a in b recursive %}{{ loop(a) }}{% endfor %}", "a for cannot be recursive"),
        ];
        for (template, expected) in cases {
            let error = check(template).and_then(|()| render(template, &json!({})).map(drop)).unwrap_err();
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
            ("{% for row in rows %}{{ long }}{% endfor %}", "makes more than 1048576 bytes"),
            (&many, "makes more than 1048576 bytes"),
            (&json, "makes more than 1048576 bytes"),
            (nested, "takes more than 50000 steps"),
        ];
        for (template, expected) in cases {
            let error = render(template, &data).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let deep = format!("{}{}", "{% for a in rows %}".repeat(400), "{% endfor %}".repeat(400));
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
