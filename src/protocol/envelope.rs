//! The envelope around every worker answer, success or error: the advertised version and the
//! capability object, then the fields of the answer as their siblings.

use serde::Serialize;
use serde_json::Value;

use super::version::Advertised;

/// The part that all worker answers share, serialized once at start.
///
/// The capability object is several kilobytes and constant, and worker answers are the hottest path
/// of the server; so answers are put behind these bytes and nothing is parsed or built twice.
#[derive(Clone, Debug)]
pub struct EnvelopeBytes {
    /// `{"protocol_version":"1.13","server_capabilities":{…}`, without the closing brace.
    head: Box<[u8]>,
}

/// An answer that cannot be put into the envelope; always a defect of the server.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// The answer is not a JSON object.
    #[error("the answer is not a JSON object")]
    NotAnObject,
    /// The answer does not serialize.
    #[error("the answer does not serialize: {0}")]
    Unserializable(#[from] serde_json::Error),
}

impl EnvelopeBytes {
    /// Prepares the envelope of a server that advertises this version with these
    /// [capabilities](super::capabilities::server_capabilities).
    #[must_use]
    pub fn new(advertised: &Advertised, capabilities: &Value) -> Self {
        // A version is digits and a dot, so it needs no escaping.
        let head =
            format!(r#"{{"protocol_version":"{advertised}","server_capabilities":{capabilities}"#);
        Self {
            head: head.into_bytes().into_boxed_slice(),
        }
    }

    /// Puts a serialized object into the envelope, byte for byte.
    ///
    /// The object must not have the two keys of the envelope itself.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError::NotAnObject`] for text that does not begin and end like an object.
    pub fn wrap(&self, body: impl AsRef<[u8]>) -> Result<Vec<u8>, EnvelopeError> {
        let fields = body
            .as_ref()
            .trim_ascii()
            .strip_prefix(b"{")
            .and_then(|rest| rest.strip_suffix(b"}"))
            .ok_or(EnvelopeError::NotAnObject)?
            .trim_ascii();
        let mut answer = Vec::with_capacity(self.head.len() + fields.len() + 2);
        answer.extend_from_slice(&self.head);
        if !fields.is_empty() {
            answer.push(b',');
            answer.extend_from_slice(fields);
        }
        answer.push(b'}');
        Ok(answer)
    }

    /// What every answer begins with, without the closing brace.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// What follows the head for an answer with these fields, as a serialized object without white
    /// space around it. Both are sent one after the other, so that the head is never copied.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError::NotAnObject`] for text that does not begin and end like an object.
    pub fn rest(mut fields: Vec<u8>) -> Result<Vec<u8>, EnvelopeError> {
        match fields.as_mut_slice() {
            [b'{', b'}'] => {
                fields.remove(0);
            }
            [open @ b'{', .., b'}'] => *open = b',',
            _ => return Err(EnvelopeError::NotAnObject),
        }
        Ok(fields)
    }

    /// Serializes an answer straight into the envelope.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] when the answer does not serialize to an object.
    pub fn serialize<T: Serialize + ?Sized>(&self, body: &T) -> Result<Vec<u8>, EnvelopeError> {
        let mut answer = Vec::with_capacity(self.head.len() + 512);
        answer.extend_from_slice(&self.head);
        let start = answer.len();
        serde_json::to_writer(&mut answer, body)?;
        // The object's own opening brace becomes the comma after the head.
        match &mut answer[start..] {
            [b'{', b'}'] => {
                answer.remove(start);
            }
            [open @ b'{', ..] => *open = b',',
            _ => return Err(EnvelopeError::NotAnObject),
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    fn envelope() -> EnvelopeBytes {
        let capabilities = json!({"long_poll_timeout": 30, "odd \"key\"": ["}", "{"]});
        EnvelopeBytes::new(&Advertised::default(), &capabilities)
    }

    const HEAD: &str = r#"{"protocol_version":"1.13","server_capabilities":{"long_poll_timeout":30,"odd \"key\"":["}","{"]}"#;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn fields_follow_both_keys() {
        for body in [r#"{"task":null,"x":{}}"#, " {\n \"task\":null,\"x\":{} }\n"] {
            let answer = text(envelope().wrap(body).unwrap());
            assert_eq!(answer, format!("{HEAD},\"task\":null,\"x\":{{}}}}"));
        }
        let answer = text(envelope().serialize(&json!({"task": null})).unwrap());
        assert_eq!(answer, format!("{HEAD},\"task\":null}}"));
    }

    #[test]
    fn head_and_rest_are_the_answer() {
        for body in ["{}", r#"{"a":1}"#, r#"{"a":{"b":[]},"c":"}"}"#] {
            let mut whole = envelope().head().to_vec();
            whole.extend(EnvelopeBytes::rest(body.into()).unwrap());
            assert_eq!(whole, envelope().wrap(body).unwrap());
        }
        for body in ["", "{", "}", "[]", "null", " {}"] {
            assert!(EnvelopeBytes::rest(body.into()).is_err(), "{body}");
        }
    }

    #[test]
    fn an_empty_answer_is_the_envelope_alone() {
        for body in ["{}", "{ \n}", " {}"] {
            assert_eq!(text(envelope().wrap(body).unwrap()), format!("{HEAD}}}"));
        }
        assert_eq!(
            text(envelope().serialize(&json!({})).unwrap()),
            format!("{HEAD}}}")
        );
    }

    #[test]
    fn what_is_no_object_is_a_defect() {
        for body in ["", "{", "[]", "null", "\"{}\""] {
            assert!(
                matches!(envelope().wrap(body), Err(EnvelopeError::NotAnObject)),
                "{body}"
            );
        }
        for body in [json!([]), json!(null), json!("{}")] {
            let refused = envelope().serialize(&body);
            assert!(matches!(refused, Err(EnvelopeError::NotAnObject)), "{body}");
        }
    }

    proptest! {
        #[test]
        fn every_answer_is_valid_json_with_both_keys_first(
            fields in prop::collection::btree_map(any::<String>(), any::<Option<String>>(), 0..6)
        ) {
            let body = serde_json::to_value(&fields).unwrap();
            let wrapped = envelope().wrap(body.to_string()).unwrap();
            prop_assert_eq!(&wrapped, &envelope().serialize(&body).unwrap());
            prop_assert!(wrapped.starts_with(HEAD.as_bytes()));

            let answer: Map<String, Value> = serde_json::from_slice(&wrapped).unwrap();
            prop_assert_eq!(&answer["protocol_version"], &json!("1.13"));
            prop_assert_eq!(answer.len(), fields.len() + 2);
            for (key, value) in &fields {
                prop_assert_eq!(&answer[key], &json!(value));
            }
        }
    }
}
