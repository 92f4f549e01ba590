//! etcd, as far as a pool needs it: keys under leases, and transactions that ask who made a key.
//!
//! Its JSON gateway takes a POST by HTTP/1.0, whose answer ends with the connection. So a call is a connection, and has a time in which it must be done.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Ended;
use super::security::{Security, Tls};
use super::stream::Stream;

/// The part of a configuration that says where etcd is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Etcd {
    /// `http://HOST:PORT`, on this host only, or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// What the pool's keys begin with. No other pool has the same.
    pub prefix: String,
    /// By what servers and etcd prove who they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

impl Etcd {
    /// Says what cannot work.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("etcd.endpoints: there must be one at least".to_string());
        }
        if self.prefix.is_empty() || self.prefix.ends_with('/') {
            return Err("etcd.prefix: it names the pool, as in \"/forebay/work\"".to_string());
        }
        if { self.endpoints.iter() }.any(|endpoint| endpoint.contains('@')) {
            // What is before it may be a secret, and errors are logged.
            return Err(
                "etcd.endpoints: no user and no password before an @; [etcd.tls] has certificates"
                    .to_string(),
            );
        }
        for endpoint in &self.endpoints {
            let wrong = |what: &str| Err(format!("etcd.endpoints: {endpoint}: {what}"));
            let Some((is_safe, host, _)) = parts(endpoint) else {
                return wrong("it is no http://HOST:PORT or https://HOST:PORT");
            };
            let is_here = host == "localhost" || { host.parse() }
                .is_ok_and(|host: std::net::IpAddr| host.is_loopback());
            match (is_safe, &self.tls) {
                (true, None) => return wrong("https needs [etcd.tls]"),
                (false, Some(_)) => return wrong("with [etcd.tls] it begins with https"),
                (false, None) if !is_here => {
                    return wrong(
                        "without [etcd.tls] only loopback addresses, since nobody proves who he is",
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The same with each endpoint alone.
    pub fn each(&self) -> impl Iterator<Item = Etcd> {
        self.endpoints.iter().map(|endpoint| Etcd {
            endpoints: vec![endpoint.clone()],
            ..self.clone()
        })
    }

    /// Asks which version it has. A connection, a write and a read may take so long each, and a slow answer is many reads.
    ///
    /// # Errors
    /// Which endpoint failed last, and why.
    pub fn version(&self, patience: Duration) -> io::Result<String> {
        let mut asker = Asker::new(self, patience).map_err(io::Error::other)?;
        let answer = asker.call("maintenance/status", &json!({}))?;
        let version = answer["version"].as_str().map(str::to_owned);
        version.ok_or_else(|| no_sense(&answer))
    }

    /// What members of one pool have alike.
    pub(super) fn alike(&self) -> Etcd {
        Etcd {
            endpoints: Vec::new(),
            tls: None,
            prefix: self.prefix.clone(),
        }
    }
}

/// Whether an endpoint is asked by TLS, its host and its port.
fn parts(endpoint: &str) -> Option<(bool, &str, u16)> {
    let (scheme, address) = endpoint.split_once("://")?;
    let is_safe = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let (host, port) = address
        .strip_suffix('/')
        .unwrap_or(address)
        .rsplit_once(':')?;
    let host = host
        .strip_prefix('[')
        .map_or(Some(host), |host| host.strip_suffix(']'))?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty() && !host.contains('/')).then_some((is_safe, host, port))
}

/// No answer is longer: etcd's own limit of what it takes is less.
const ANSWER_MAX: u64 = 16 << 20;

/// A value, and the revisions in which its key was made, and changed last.
pub(super) struct Found {
    pub value: Vec<u8>,
    pub made: u64,
    pub changed: u64,
}

/// Connections to etcd.
pub(super) struct Asker {
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
    security: Security,
    patience: Duration,
}

impl Asker {
    /// Each endpoint may take so long for a call.
    pub fn new(config: &Etcd, patience: Duration) -> Result<Asker, Ended> {
        Ok(Asker {
            endpoints: config.endpoints.clone(),
            current: 0,
            security: Security::of(config.tls.as_ref())?,
            patience,
        })
    }

    /// A lease of so many seconds, or as many as etcd gives at least: its number, and how long it lasts.
    pub fn grant(&mut self, seconds: u64) -> io::Result<(u64, Duration)> {
        let answer = self.call("lease/grant", &json!({ "TTL": seconds }))?;
        let lease = number(&answer["ID"]).ok_or_else(|| no_sense(&answer))?;
        let seconds = number(&answer["TTL"]).ok_or_else(|| no_sense(&answer))?;
        Ok((lease, Duration::from_secs(seconds)))
    }

    /// Renews a lease, and says how long it lasts; `None`: it is over.
    pub fn renew(&mut self, lease: u64) -> io::Result<Option<Duration>> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        let Some(result) = answer.get("result") else {
            return Err(no_sense(&answer));
        };
        let seconds = number(&result["TTL"]).filter(|seconds| *seconds > 0);
        Ok(seconds.map(Duration::from_secs))
    }

    /// Ends a lease, and all keys under it.
    pub fn revoke(&mut self, lease: u64) -> io::Result<()> {
        let ended = self.call("lease/revoke", &json!({ "ID": lease.to_string() }));
        ended.map(drop)
    }

    /// A key's value.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Found>> {
        let answer = self.call("kv/range", &json!({ "key": encode(key.as_bytes()) }))?;
        let Some(found) = answer["kvs"].get(0) else {
            return Ok(None);
        };
        // An empty value is left out.
        let value = found["value"].as_str().unwrap_or_default();
        let value = decode(value).ok_or_else(|| no_sense(&answer))?;
        let made = number(&found["create_revision"]).ok_or_else(|| no_sense(&answer))?;
        let changed = number(&found["mod_revision"]).ok_or_else(|| no_sense(&answer))?;
        Ok(Some(Found {
            value,
            made,
            changed,
        }))
    }

    /// How the keys go on that begin so.
    pub fn below(&mut self, begin: &str) -> io::Result<Vec<String>> {
        let mut end = begin.as_bytes().to_vec();
        // It ends with a slash.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({ "key": encode(begin.as_bytes()), "range_end": encode(&end), "keys_only": true });
        let answer = self.call("kv/range", &range)?;
        let all = answer["kvs"].as_array().cloned().unwrap_or_default();
        let keys = all
            .iter()
            .filter_map(|found| decode(found["key"].as_str()?));
        Ok(keys
            .filter_map(|key| String::from_utf8(key).ok())
            .filter_map(|key| key.strip_prefix(begin).map(str::to_string))
            .collect())
    }

    /// Puts a value under a lease.
    pub fn put(&mut self, key: &str, value: &[u8], lease: u64) -> io::Result<()> {
        let put = json!({ "key": encode(key.as_bytes()), "value": encode(value), "lease": lease.to_string() });
        self.call("kv/put", &put).map(drop)
    }

    /// Makes a key under a lease, if there is none, and says in which revision.
    pub fn make(&mut self, key: &str, value: &[u8], lease: u64) -> io::Result<Option<u64>> {
        let key = encode(key.as_bytes());
        let put = json!({ "key": key, "value": encode(value), "lease": lease.to_string() });
        let is_none =
            json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" });
        let made = self.call("kv/txn", &one_if(&is_none, &put))?;
        if made["succeeded"] != true {
            return Ok(None);
        }
        let revision = number(&made["header"]["revision"]);
        revision.map(Some).ok_or_else(|| no_sense(&made))
    }

    /// Puts a value, under a lease or under none (0), if a key is still the one that was made in this revision; says whether it is.
    pub fn put_if(
        &mut self,
        (guard, made): (&str, u64),
        key: &str,
        value: &[u8],
        lease: u64,
    ) -> io::Result<bool> {
        let put = json!({ "key": encode(key.as_bytes()), "value": encode(value), "lease": lease.to_string() });
        let is_there = json!({ "key": encode(guard.as_bytes()), "target": "CREATE", "result": "EQUAL",
            "create_revision": made.to_string() });
        let done = self.call("kv/txn", &one_if(&is_there, &put))?;
        Ok(done["succeeded"] == true)
    }

    /// Puts a value, if a key is still the one that was made in this revision, and the value's own was changed last in that one (0: it is not there);
    /// says in which revision it is put.
    pub fn put_after(
        &mut self,
        (guard, made): (&str, u64),
        (key, last): (&str, u64),
        value: &[u8],
    ) -> io::Result<Option<u64>> {
        let key = encode(key.as_bytes());
        let is_there = json!({ "key": encode(guard.as_bytes()), "target": "CREATE", "result": "EQUAL",
            "create_revision": made.to_string() });
        let is_last = json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": last.to_string() });
        let put = json!({ "request_put": { "key": key, "value": encode(value) } });
        let both = json!({ "compare": [is_there, is_last], "success": [put] });
        let done = self.call("kv/txn", &both)?;
        if done["succeeded"] != true {
            return Ok(None);
        }
        let revision = number(&done["header"]["revision"]);
        revision.map(Some).ok_or_else(|| no_sense(&done))
    }

    /// Asks one endpoint after the other, the one that answered last first.
    fn call(&mut self, what: &str, body: &Value) -> io::Result<Value> {
        let count = self.endpoints.len();
        let mut last = Err(io::Error::other("no endpoint"));
        for turn in 0..count {
            let at = (self.current + turn) % count;
            let endpoint = &self.endpoints[at];
            last = self.call_one(endpoint, what, body);
            match &mut last {
                Ok(_) => {
                    self.current = at;
                    break;
                }
                Err(error) if is_late(error.kind()) => {
                    let why = format!("{endpoint} does not answer within {:?}", self.patience);
                    *error = io::Error::new(io::ErrorKind::TimedOut, why);
                }
                Err(error) => *error = io::Error::new(error.kind(), format!("{endpoint}: {error}")),
            }
        }
        last
    }

    fn call_one(&self, endpoint: &str, what: &str, body: &Value) -> io::Result<Value> {
        let no_place = || io::Error::new(io::ErrorKind::InvalidInput, "no such address");
        let (_, host, port) = parts(endpoint).ok_or_else(no_place)?;
        let name = ServerName::try_from(host.to_string()).map_err(|_| no_place())?;
        let address = (host, port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(no_place)?;
        let mut stream = Stream::dial(address, name, &self.security, self.patience)?;
        let body = body.to_string();
        let head = format!(
            "POST /v3/{what} HTTP/1.0\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
        understood(&answer)
    }
}

/// What reads and writes fail with when their time is over.
fn is_late(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A transaction of one condition and what is done if it holds.
fn one_if(condition: &Value, put: &Value) -> Value {
    json!({ "compare": [condition], "success": [{ "request_put": put }] })
}

/// What an answer of HTTP says.
fn understood(answer: &[u8]) -> io::Result<Value> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.lines().next().unwrap_or_default();
    // Some answers have lines of a trailer behind them.
    let said = serde_json::Deserializer::from_str(body)
        .into_iter::<Value>()
        .next();
    match (status.split(' ').nth(1), said) {
        (Some("200"), Some(Ok(said))) => Ok(said),
        (Some("200"), _) => Err(no_sense(&Value::String(body.to_string()))),
        (_, Some(Ok(said))) if said["error"].is_string() => {
            Err(io::Error::other(said["error"].as_str().unwrap_or_default()))
        }
        _ => Err(io::Error::other(format!("it answers {status:?}"))),
    }
}

fn no_sense(answer: &Value) -> io::Error {
    let why = format!("it answers what makes no sense: {answer:.200}");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Numbers of 64 bits are strings in JSON.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes are base64 in JSON.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for piece in bytes.chunks(3) {
        let byte = |at: usize| u32::from(piece.get(at).copied().unwrap_or(0));
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(all >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= piece.len() { digit.into() } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for piece in text.as_bytes().chunks(4) {
        let digits = piece.iter().take_while(|digit| **digit != b'=');
        let values: Option<Vec<u32>> = digits
            .map(|digit| Some(DIGITS.iter().position(|known| known == digit)? as u32))
            .collect();
        let values = values.filter(|values| piece.len() == 4 && values.len() > 1)?;
        let all =
            { values.iter().enumerate() }.fold(0, |all, (at, value)| all | value << (18 - 6 * at));
        bytes.extend(&all.to_be_bytes()[1..values.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_after_base64() {
        assert_eq!(encode(b"foo"), "Zm9v");
        assert_eq!(encode(b"fo"), "Zm8=");
        assert_eq!(encode(&[0xff]), "/w==");
        for length in 0..200_u8 {
            let bytes: Vec<u8> = (0..length).map(|at| at.wrapping_mul(37)).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
        for bad in ["Z", "Zm9", "Z===", "Zm9v!", "Zm\n="] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn answers_are_understood_or_refused() {
        let said = understood(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"ID\":\"7\"}").unwrap();
        assert_eq!(number(&said["ID"]), Some(7));
        let gone = b"HTTP/1.0 404 Not Found\r\n\r\n{\"error\":\"no lease\",\"code\":5}\nTrailer: x";
        assert_eq!(understood(gone).unwrap_err().to_string(), "no lease");
        for bad in [
            &b""[..],
            b"HTTP/1.0 200 OK\r\n\r\n{\"ID\":",
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>",
            b"\x15\x03\x01\x00\x02\x02\x50",
        ] {
            assert!(understood(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn endpoints_that_cannot_be_are_refused() {
        let with = |endpoint: &str, prefix: &str, has_tls: bool| {
            let tls = Tls {
                certificate: "a".into(),
                key: "b".into(),
                authority: "c".into(),
            };
            Etcd {
                endpoints: vec![endpoint.to_string()],
                prefix: prefix.to_string(),
                tls: has_tls.then_some(tls),
            }
            .check()
        };
        for good in [
            "http://127.0.0.1:2379",
            "http://localhost:1/",
            "http://[::1]:2379",
        ] {
            assert_eq!(with(good, "/a", false), Ok(()));
        }
        assert_eq!(with("https://etcd.example:2379", "/a", true), Ok(()));
        for (bad, has_tls) in [
            ("127.0.0.1:2379", false),
            ("http://127.0.0.1", false),
            ("http://127.0.0.1:0", false),
            ("http://192.0.2.1:2379", false),
            ("http://etcd.example:2379", false),
            ("https://127.0.0.1:2379", false),
            ("http://127.0.0.1:2379", true),
            ("ftp://127.0.0.1:2379", false),
            ("http://127.0.0.1/a:2379", false),
        ] {
            let why = with(bad, "/a", has_tls).unwrap_err();
            assert!(why.contains(bad), "{why}");
        }
        for secret in [
            "http://root:hunter2@127.0.0.1:2379",
            "ftp://hunter2@",
            "http://a:hunter2@[::1]:2379",
        ] {
            let why = with(secret, "/a", false).unwrap_err();
            assert!(why.contains('@') && !why.contains("hunter2"), "{why}");
        }
        assert!(with("http://127.0.0.1:2379", "", false).is_err());
        assert!(with("http://127.0.0.1:2379", "/a/", false).is_err());
    }
}
