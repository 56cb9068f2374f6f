//! Conversions of BSON: documents to JSON, `_id`s to ids of an index.
//!
//! | BSON | JSON |
//! |---|---|
//! | string, boolean, null, array, document | the same |
//! | 32-bit and 64-bit integer, double | number |
//! | ObjectId | its 24 hexadecimal digits |
//! | date | RFC 3339 with milliseconds in UTC; milliseconds since 1970 before the year 0 or after 9999 |
//! | Decimal128 | its digits as a string, so that none is lost |
//! | binary | base64; a UUID in its usual form |
//! | timestamp | its second as a date |
//! | regular expression | `/pattern/options` |
//! | JavaScript, symbol | its text |
//! | undefined | null |
//! | NaN, infinity, MinKey, MaxKey, DBPointer | none: the document is refused |
//!
//! The top-level `_id` is left out, because it is the document's id, and search engines accept no
//! field of that name.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::raw::{RawArray, RawBsonRef, RawDocument};
use bson::spec::BinarySubtype;
use bson::{Bson, DateTime, Uuid};
use serde_json::Value;

/// Returns a document as one line of JSON, without its `_id`.
///
/// # Errors
///
/// Fails with the place and the reason if a value has no form in JSON.
pub fn document_json(document: &RawDocument) -> Result<String, String> {
    let mut json = String::with_capacity(document.as_bytes().len() * 3 / 2);
    write_document(document, Some("_id"), &mut json).map_err(|fault| fault.to_string())?;
    Ok(json)
}

/// Returns the id in the index of a document with this `_id`.
///
/// A string is its own id, an ObjectId its digits, a number its decimal form, anything else its
/// [`extended_json`]. Two `_id`s can have the same id only if one is a string: see
/// [`lookalikes`].
pub fn document_id(id: &Bson) -> String {
    match id {
        Bson::String(text) => text.clone(),
        Bson::ObjectId(id) => id.to_hex(),
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        // All digits of a whole number, because the shortest form of a large one is the id of
        // another integer.
        Bson::Double(number) if number.fract() == 0.0 => format!("{number:.0}"),
        Bson::Double(number) => number.to_string(),
        other => extended_json(other),
    }
}

/// Returns a value as canonical extended JSON, which keeps its type, with the fields of a document
/// in their order: MongoDB tells `{a, b}` from `{b, a}`, and sorts them apart.
pub fn extended_json(value: &Bson) -> String {
    match value {
        Bson::Document(document) => {
            let field = |(name, value): (&String, &Bson)| {
                format!("{}:{}", Value::from(name.as_str()), extended_json(value))
            };
            let fields: Vec<String> = document.iter().map(field).collect();
            format!("{{{}}}", fields.join(","))
        }
        Bson::Array(values) => {
            let values: Vec<String> = values.iter().map(extended_json).collect();
            format!("[{}]", values.join(","))
        }
        other => other.clone().into_canonical_extjson().to_string(),
    }
}

/// Returns the value of an [`extended_json`]; `None` for anything else.
pub fn from_extended_json(text: &str) -> Option<Bson> {
    serde_json::from_str(text).ok()
}

/// Returns the `_id`s of other types that have the same id as the string `text`.
pub fn lookalikes(text: &str) -> Vec<Bson> {
    let object = bson::oid::ObjectId::parse_str(text)
        .ok()
        .map(Bson::ObjectId);
    let number = text.parse().ok().map(Bson::Int64);
    let double = text.parse().ok().map(Bson::Double);
    // A query for a regular expression would find every text that it matches; it is no `_id`.
    let other = from_extended_json(text).filter(|value| {
        !matches!(
            value,
            Bson::String(_) | Bson::Array(_) | Bson::RegularExpression(_) | Bson::Undefined
        )
    });
    [object, number, double, other]
        .into_iter()
        .flatten()
        .filter(|id| document_id(id) == text)
        .collect()
}

/// Returns the `_id`s, without `id` itself, of other documents that may have the same id in the
/// index.
pub fn twins(id: &Bson) -> Vec<Bson> {
    match id {
        Bson::String(text) => lookalikes(text),
        other => vec![Bson::String(document_id(other))],
    }
}

/// A value that has no form in JSON, with the fields that lead to it.
struct Fault {
    path: Vec<String>,
    reason: &'static str,
}

impl Fault {
    fn of(reason: &'static str) -> Self {
        let path = Vec::new();
        Self { path, reason }
    }

    fn under(mut self, name: &str) -> Self {
        self.path.push(name.to_owned());
        self
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path: Vec<_> = self.path.iter().rev().map(String::as_str).collect();
        write!(
            f,
            "its field {} is {}, which JSON cannot express",
            path.join("."),
            self.reason
        )
    }
}

fn write_document(
    document: &RawDocument,
    left_out: Option<&str>,
    json: &mut String,
) -> Result<(), Fault> {
    json.push('{');
    let mut is_first = true;
    for element in document {
        let (name, value) = element.map_err(|_| Fault::of("not BSON"))?;
        let name = name.as_str();
        if left_out == Some(name) {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            json.push(',');
        }
        write_text(name, json);
        json.push(':');
        write_value(value, json).map_err(|fault| fault.under(name))?;
    }
    json.push('}');
    Ok(())
}

fn write_array(array: &RawArray, json: &mut String) -> Result<(), Fault> {
    json.push('[');
    for (place, value) in array.into_iter().enumerate() {
        let value = value.map_err(|_| Fault::of("not BSON"))?;
        if place > 0 {
            json.push(',');
        }
        write_value(value, json).map_err(|fault| fault.under(&place.to_string()))?;
    }
    json.push(']');
    Ok(())
}

fn write_value(value: RawBsonRef<'_>, json: &mut String) -> Result<(), Fault> {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => json.push_str("null"),
        RawBsonRef::Boolean(flag) => json.push_str(if flag { "true" } else { "false" }),
        RawBsonRef::Int32(number) => write_plain(number, json),
        RawBsonRef::Int64(number) => write_plain(number, json),
        RawBsonRef::Double(number) if number.is_nan() => return Err(Fault::of("NaN")),
        RawBsonRef::Double(number) if number.is_infinite() => return Err(Fault::of("infinite")),
        // In serde's form a whole number keeps its ".0", so that a dynamic mapping makes it a
        // double.
        RawBsonRef::Double(number) => write_plain(Value::from(number), json),
        RawBsonRef::String(text) | RawBsonRef::JavaScriptCode(text) | RawBsonRef::Symbol(text) => {
            write_text(text, json)
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => write_text(code.code, json),
        RawBsonRef::ObjectId(id) => write_text(&id.to_hex(), json),
        RawBsonRef::Decimal128(number) => write_text(&number.to_string(), json),
        RawBsonRef::DateTime(date) => write_date(date, json),
        RawBsonRef::Timestamp(at) => {
            write_date(DateTime::from_millis(i64::from(at.time) * 1000), json);
        }
        RawBsonRef::RegularExpression(regex) => {
            write_text(
                &format!("/{}/{}", regex.pattern.as_str(), regex.options.as_str()),
                json,
            );
        }
        RawBsonRef::Binary(binary) => {
            let bytes = <[u8; 16]>::try_from(binary.bytes);
            match (binary.subtype, bytes) {
                (BinarySubtype::Uuid, Ok(bytes)) => {
                    write_text(&Uuid::from_bytes(bytes).to_string(), json);
                }
                _ => write_text(&STANDARD.encode(binary.bytes), json),
            }
        }
        RawBsonRef::Array(array) => write_array(array, json)?,
        RawBsonRef::Document(document) => write_document(document, None, json)?,
        RawBsonRef::MinKey => return Err(Fault::of("MinKey")),
        RawBsonRef::MaxKey => return Err(Fault::of("MaxKey")),
        RawBsonRef::DbPointer(_) => return Err(Fault::of("a DBPointer")),
    }
    Ok(())
}

fn write_text(text: &str, json: &mut String) {
    write_plain(Value::from(text), json);
}

fn write_plain(value: impl std::fmt::Display, json: &mut String) {
    // Writing to a `String` does not fail.
    let _ = write!(json, "{value}");
}

/// Writes a date in the form that search engines read by default.
fn write_date(date: DateTime, json: &mut String) {
    let millis = date.timestamp_millis();
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(at) if (0..=9999).contains(&at.to_zoned(jiff::tz::TimeZone::UTC).year()) => {
            write_text(&format!("{at:.3}"), json);
        }
        _ => write_plain(millis, json),
    }
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::raw::RawDocumentBuf;
    use bson::{Binary, Document, Regex, Timestamp, doc};

    use super::*;

    fn json(document: &Document) -> Result<String, String> {
        document_json(&RawDocumentBuf::try_from(document).unwrap())
    }

    #[test]
    fn every_type_has_the_form_of_the_table() {
        let object = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
        let document = doc! {
            "_id": 1,
            "text": "a\"b\n",
            "int": 7,
            "long": i64::MAX,
            "double": 2.5,
            "whole": 3.0,
            "object": object,
            "date": DateTime::from_millis(1_700_000_000_123),
            "old": DateTime::from_millis(-99_999_999_999_999),
            "far": DateTime::from_millis(i64::MAX),
            "decimal": "1234567890.12345678901234567890".parse::<bson::Decimal128>().unwrap(),
            "bytes": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 255] },
            "uuid": Binary { subtype: BinarySubtype::Uuid, bytes: (0..16).collect() },
            "stamp": Timestamp { time: 1_700_000_000, increment: 5 },
            "regex": Bson::RegularExpression(Regex { pattern: bson::raw::cstr!("^a").into(), options: bson::raw::cstr!("i").into() }),
            "code": Bson::JavaScriptCode("x()".into()),
            "undefined": Bson::Undefined,
            "list": [1, "a", { "_id": 2, "deep.er": true }],
        };

        let expected = concat!(
            r#"{"text":"a\"b\n","int":7,"long":9223372036854775807,"double":2.5,"whole":3.0,"#,
            r#""object":"507f1f77bcf86cd799439011","date":"2023-11-14T22:13:20.123Z","#,
            r#""old":-99999999999999,"far":9223372036854775807,"#,
            r#""decimal":"1234567890.12345678901234567890","bytes":"AQL/","#,
            r#""uuid":"00010203-0405-0607-0809-0a0b0c0d0e0f","stamp":"2023-11-14T22:13:20.000Z","#,
            r#""regex":"/^a/i","code":"x()","undefined":null,"list":[1,"a",{"_id":2,"deep.er":true}]}"#,
        );
        assert_eq!(json(&document).unwrap(), expected);
    }

    #[test]
    fn a_value_without_a_form_in_json_is_named_with_its_place() {
        for (document, reported) in [
            (doc! {"a": {"b": [1, f64::NAN]}}, "its field a.b.1 is NaN"),
            (doc! {"a": f64::NEG_INFINITY}, "its field a is infinite"),
            (doc! {"a": Bson::MinKey}, "its field a is MinKey"),
            (doc! {"a": Bson::MaxKey}, "its field a is MaxKey"),
        ] {
            let fault = json(&document).unwrap_err();
            assert!(fault.starts_with(reported), "{fault}");
        }
    }

    #[test]
    fn ids_differ_unless_a_string_looks_like_another_type() {
        let object = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
        let ids = [
            Bson::Int32(5),
            Bson::Int64(-7),
            Bson::Double(2.5),
            Bson::ObjectId(object),
            Bson::Boolean(true),
            Bson::Null,
            Bson::Document(doc! {"a": 1}),
            Bson::DateTime(DateTime::from_millis(0)),
            Bson::Decimal128("2.5".parse().unwrap()),
        ];
        let texts: std::collections::BTreeSet<_> = ids.iter().map(document_id).collect();
        assert_eq!(texts.len(), ids.len(), "{texts:?}");
        for id in &ids {
            let text = document_id(id);
            let twins = lookalikes(&text);
            assert!(
                twins.iter().any(|twin| document_id(twin) == text),
                "{text}: {twins:?}"
            );
        }
        for id in &ids {
            assert_eq!(twins(id), [Bson::String(document_id(id))]);
        }
        for plain in [
            "a",
            "[1]",
            "{\"$regularExpression\":{\"pattern\":\"^a\",\"options\":\"\"}}",
            "article-7",
            "05",
            "507f1f77bcf86cd79943901",
            "+5",
            "1e3",
            "",
        ] {
            assert_eq!(lookalikes(plain), [], "{plain}");
        }
    }

    /// 2^60 as a double, and the integer that its shortest form reads like.
    #[test]
    fn a_large_number_has_an_id_of_its_own() {
        let double = Bson::Double(1_152_921_504_606_846_976.0);
        assert_eq!(document_id(&double), "1152921504606846976");
        let integer = Bson::Int64(1_152_921_504_606_847_000);
        assert_ne!(document_id(&double), document_id(&integer));
    }

    #[test]
    fn the_fields_of_an_id_keep_their_order() {
        let id = Bson::Document(doc! {"shop": 1, "n": {"b": [2_i64, "x"], "a": Bson::Null}});
        let text = extended_json(&id);
        assert_eq!(
            text,
            r#"{"shop":{"$numberInt":"1"},"n":{"b":[{"$numberLong":"2"},"x"],"a":null}}"#
        );
        assert_eq!(from_extended_json(&text), Some(id.clone()));
        assert_ne!(
            document_id(&id),
            document_id(&Bson::Document(
                doc! {"n": {"b": [2_i64, "x"], "a": Bson::Null}, "shop": 1}
            ))
        );
        for id in [
            Bson::Double(2.0),
            Bson::DateTime(DateTime::from_millis(-5)),
            Bson::Timestamp(Timestamp {
                time: 5,
                increment: 7,
            }),
            Bson::Binary(Binary {
                subtype: BinarySubtype::Uuid,
                bytes: (0..16).collect(),
            }),
            Bson::Decimal128("2.50".parse().unwrap()),
            Bson::String("{\"a\":1}".into()),
            Bson::Boolean(true),
            Bson::MinKey,
        ] {
            assert_eq!(from_extended_json(&extended_json(&id)), Some(id));
        }
    }
}
