//! Compression: of whole answers, as `Accept-Encoding` asks (RFC 9110, section 12.5.3), and of history
//! pages inside answers (worker plane, section 5.5).

use std::io::Write;

use actix_web::HttpRequest;
use actix_web::http::header::{self, Header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

/// Answers that are smaller go out as they are, in bytes.
const SMALLEST: usize = 1_024;
/// Speed counts: answers wait for it, and most of them cross a short way.
const LEVEL: Compression = Compression::fast();

/// A whole body in the coding that the request accepts, and the name of that; `None` when it goes out
/// as it is.
pub fn encode(request: &HttpRequest, body: &[u8]) -> Option<(Vec<u8>, &'static str)> {
    if body.len() < SMALLEST {
        return None;
    }
    let accepted = header::AcceptEncoding::parse(request).ok()?;
    let served = [
        header::Encoding::gzip(),
        header::Encoding::deflate(),
        header::Encoding::identity(),
    ];
    let chosen = accepted.negotiate(served.iter())?;
    if chosen == header::Encoding::gzip() {
        Some((gzip(body)?, "gzip"))
    } else if chosen == header::Encoding::deflate() {
        // The coding of this name is the zlib format (RFC 9110, section 8.4.1.2).
        let mut encoder = ZlibEncoder::new(Vec::new(), LEVEL);
        encoder.write_all(body).ok()?;
        Some((encoder.finish().ok()?, "deflate"))
    } else {
        None
    }
}

fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), LEVEL);
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// A form in which a worker takes history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEncoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1951, without a header.
    Deflate,
}

impl HistoryEncoding {
    /// The first that the server has of those that the worker names, separated by commas.
    pub fn accepted(named: &str) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|encoding| {
            named
                .split(',')
                .any(|name| name.trim().eq_ignore_ascii_case(encoding.as_str()))
        })
    }

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Base64 of the compressed text.
    pub fn encode(self, text: &str) -> Option<String> {
        let bytes = match self {
            Self::Gzip => gzip(text.as_bytes())?,
            Self::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), LEVEL);
                encoder.write_all(text.as_bytes()).ok()?;
                encoder.finish().ok()?
            }
        };
        Some(STANDARD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use actix_web::test::TestRequest;
    use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};

    use super::*;

    fn read(mut decoder: impl Read) -> Result<String, std::io::Error> {
        let mut text = String::new();
        decoder.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn answers_are_encoded_as_they_are_asked_for() -> Result<(), std::io::Error> {
        let body = "abc ".repeat(1_000);
        for (accepts, coding) in [
            ("gzip", Some("gzip")),
            ("deflate", Some("deflate")),
            ("deflate, gzip;q=0.5", Some("deflate")),
            ("gzip;q=0, identity", None),
            ("br", None),
            ("identity", None),
            ("", None),
        ] {
            let request = TestRequest::default()
                .insert_header(("Accept-Encoding", accepts))
                .to_http_request();
            let encoded = encode(&request, body.as_bytes());
            assert_eq!(encoded.as_ref().map(|(_, name)| *name), coding, "{accepts}");
            let Some((bytes, name)) = encoded else {
                continue;
            };
            let text = if name == "gzip" {
                read(GzDecoder::new(&bytes[..]))?
            } else {
                read(ZlibDecoder::new(&bytes[..]))?
            };
            assert_eq!(text, body);
            assert_eq!(encode(&request, &body.as_bytes()[..SMALLEST - 1]), None);
        }
        let silent = TestRequest::default().to_http_request();
        assert_eq!(encode(&silent, body.as_bytes()), None);
        Ok(())
    }

    #[test]
    fn history_is_encoded_in_the_order_of_the_server() -> Result<(), Box<dyn std::error::Error>> {
        for (named, found) in [
            ("deflate, gzip", Some(HistoryEncoding::Gzip)),
            ("br,Deflate", Some(HistoryEncoding::Deflate)),
            ("br", None),
            ("", None),
        ] {
            assert_eq!(HistoryEncoding::accepted(named), found, "{named}");
        }
        let text = "[{\"sequence\":1}]";
        let gzip = HistoryEncoding::Gzip.encode(text).unwrap_or_default();
        assert_eq!(read(GzDecoder::new(&STANDARD.decode(gzip)?[..]))?, text);
        let raw = HistoryEncoding::Deflate.encode(text).unwrap_or_default();
        assert_eq!(read(DeflateDecoder::new(&STANDARD.decode(raw)?[..]))?, text);
        Ok(())
    }
}
