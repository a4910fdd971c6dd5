//! The canonical JSON text that an export's checksum is taken of (`json-recursive-ksort-v1`): keys
//! sorted at every level, no spaces, everything beyond ASCII escaped as UTF-16, floats in the shortest
//! form that reads back, fixed up to an exponent of 16.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// The canonical text of a value. Object keys come in order from [`serde_json::Map`].
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (place, (key, item)) in fields.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_number(number: &Number, out: &mut String) {
    match number.as_f64().filter(|_| number.is_f64()) {
        None => out.push_str(&number.to_string()),
        Some(float) => {
            let scientific = format!("{float:e}");
            let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let (text, tail) = if (-4..17).contains(&exponent) {
                (format!("{float}"), String::new())
            } else {
                (mantissa.to_owned(), format!("e{exponent:+}"))
            };
            out.push_str(&text);
            if !text.contains('.') {
                out.push_str(".0");
            }
            out.push_str(&tail);
        }
    }
}

// Writing to a String does not fail.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if c.is_ascii() => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_and_text_is_ascii() {
        let value = json!({"b": [1, {"z": null, "a": true}], "a": "é\u{1f600}\u{7f}/\u{1}\n"});
        assert_eq!(
            text(&value),
            "{\"a\":\"\\u00e9\\ud83d\\ude00\u{7f}/\\u0001\\n\",\"b\":[1,{\"a\":true,\"z\":null}]}"
        );
    }

    #[test]
    fn floats_are_short_and_fixed_up_to_an_exponent_of_sixteen() {
        for (float, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "10000000000000000.0"),
            (1e17, "1.0e+17"),
            (1.5e-5, "1.5e-5"),
            (0.0001, "0.0001"),
            (-2.5e300, "-2.5e+300"),
        ] {
            assert_eq!(text(&json!(float)), expected);
        }
        assert_eq!(text(&json!(12)), "12");
    }
}
