//! JSON in the canonical form of RFC 8785: equal values have equal texts.
//!
//! It deviates in one point: a whole number beyond 2^53 keeps all its digits. The RFC rounds it to
//! a double, and two messages that differ there only would be taken for one.

use serde_json::{Number, Value};

/// Returns the canonical text of a value.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value);
    text
}

fn write(to: &mut String, value: &Value) {
    match value {
        Value::Number(number) => to.push_str(&number_text(number)),
        Value::Array(items) => {
            to.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    to.push(',');
                }
                write(to, item);
            }
            to.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            to.push('{');
            for (n, (name, value)) in fields.into_iter().enumerate() {
                if n > 0 {
                    to.push(',');
                }
                write(to, &Value::from(name.as_str()));
                to.push(':');
                write(to, value);
            }
            to.push('}');
        }
        // The escapes of serde_json are those of the RFC.
        Value::Null | Value::Bool(_) | Value::String(_) => to.push_str(&value.to_string()),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(double) if number.is_f64() => double_text(double),
        _ => number.to_string(),
    }
}

/// Writes a double as ECMAScript does: the fewest digits that read as the same double.
fn double_text(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let shortest = format!("{:e}", number.abs());
    let fraction = shortest
        .split(['.', 'e'])
        .nth(1)
        .filter(|_| shortest.contains('.'));
    // As many digits, but of two numbers that are equally near the one with the even last digit.
    let even = format!("{:.*e}", fraction.map_or(0, str::len), number.abs());
    let is_same = even.parse() == Ok(number.abs());
    let chosen = if is_same { even } else { shortest };
    let (digits, power) = chosen.split_once('e').unwrap_or((&chosen, "0"));
    let digits = digits.replace('.', "");
    let (count, power) = (digits.len() as i32, power.parse::<i32>().unwrap_or(0));
    // The place of the point, counted from the first digit.
    let point = power + 1;
    let zeros = |n: i32| "0".repeat(n.max(0) as usize);
    let text = match point {
        22.. | ..=-6 => {
            let (first, rest) = digits.split_at(1);
            let fraction = if rest.is_empty() {
                String::new()
            } else {
                format!(".{rest}")
            };
            let sign = if power < 0 { '-' } else { '+' };
            format!("{first}{fraction}e{sign}{}", power.abs())
        }
        -5..=0 => format!("0.{}{digits}", zeros(-point)),
        _ if point >= count => format!("{digits}{}", zeros(point - count)),
        _ => {
            let (whole, fraction) = digits.split_at(point as usize);
            format!("{whole}.{fraction}")
        }
    };
    if number < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn of(text: &str) -> String {
        canonical(&serde_json::from_str(text).unwrap())
    }

    /// Appendix B of the RFC.
    #[test]
    fn the_numbers_of_the_rfc_come_out() {
        for (bits, text) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(canonical(&json!(f64::from_bits(bits))), text, "{bits:x}");
        }
    }

    /// Sections 3.2.2 and 3.2.3 of the RFC.
    #[test]
    fn the_texts_of_the_rfc_come_out() {
        assert_eq!(
            of(
                r#"{"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false],
                    "numbers": [333333333.3333333, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]}"#
            ),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_eq!(
            of(
                r#"{"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\ud83d\ude00": 5, "\u0080": 6, "\u00f6": 7}"#
            ),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn spelling_does_not_matter_and_nesting_does() {
        assert_eq!(
            of(r#"{"b": {"y": 1, "x": 2.0}, "a": []}"#),
            of(r#"{"a":[],"b":{"x":2,"y":1e0}}"#)
        );
        assert_ne!(of(r#"{"order": {"id": 1}}"#), of(r#"{"order": {"id": 2}}"#));
        assert_ne!(of("9007199254740993"), of("9007199254740992"));
    }

    proptest! {
        #[test]
        fn a_double_reads_back_as_itself(bits in any::<u64>()) {
            let double = f64::from_bits(bits);
            prop_assume!(double.is_finite());
            prop_assert_eq!(double_text(double).parse::<f64>().unwrap(), double);
        }
    }
}
