//! Who may join: members prove by certificates that the pool's authority has let them in, both sides of each connection.
//!
//! TLS 1.3 only. A server's certificate must name its address; a client's may name anything. Who has a certificate may be a client
//! or a server, and read and write everything: there are no rights within a pool.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use super::{Config, Ended};

/// Where a member's certificate lies, and whose it believes. Files are PEM; paths are relative to the configuration's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// This member's certificate, and those between it and the authority's.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificates of those who may let members in.
    pub authority: PathBuf,
}

/// How connections begin.
#[derive(Clone)]
pub(super) enum Security {
    /// On one host only.
    None,
    Tls {
        dials: Arc<ClientConfig>,
        accepts: Arc<ServerConfig>,
    },
}

impl Security {
    pub fn of(tls: Option<&Tls>) -> Result<Security, Ended> {
        match tls {
            None => Ok(Security::None),
            Some(tls) => Security::by(tls).map_err(Ended::Tls),
        }
    }

    /// The same for a server of the configuration: who dials it has to believe its certificate.
    pub fn of_server(config: &Config, index: usize) -> Result<Security, Ended> {
        let security = Security::of(config.tls.as_ref())?;
        let at = config.servers[index].ip();
        if let Some(tls) = &config.tls
            && let Some(own) = read(&tls.certificate).map_err(Ended::Tls)?.first()
            && !names(own, at)
        {
            return Err(Ended::Tls(format!(
                "{}: who dials this server at {at} would not believe it: make one by an authority of {} that names the address (subjectAltName=IP:{at})",
                tls.certificate.display(),
                tls.authority.display()
            )));
        }
        Ok(security)
    }

    fn by(tls: &Tls) -> Result<Security, String> {
        let certificates = read(&tls.certificate)?;
        let key = || {
            PrivateKeyDer::from_pem_file(&tls.key)
                .map_err(|why| format!("{}: {why}", tls.key.display()))
        };
        let mut roots = RootCertStore::empty();
        for root in read(&tls.authority)? {
            let added = roots.add(root);
            added.map_err(|why| format!("{}: {why}", tls.authority.display()))?;
        }
        let roots = Arc::new(roots);
        let words = |why: rustls::Error| format!("{}: {why}", tls.certificate.display());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|why| format!("{}: {why}", tls.authority.display()))?;
        let mut accepts = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(words)?
            .with_client_cert_verifier(clients)
            .with_single_cert(certificates.clone(), key()?)
            .map_err(words)?;
        // Every connection begins anew.
        accepts.send_tls13_tickets = 0;
        let dials = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(words)?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates, key()?)
            .map_err(words)?;
        Ok(Security::Tls {
            dials: Arc::new(dials),
            accepts: Arc::new(accepts),
        })
    }
}

/// Whether a certificate names an address.
pub(super) fn names(certificate: &CertificateDer<'_>, address: IpAddr) -> bool {
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| verify_server_name(&parsed, &ServerName::from(address)).is_ok())
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let words = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let all = CertificateDer::pem_file_iter(path).map_err(|why| words(&why))?;
    let all: Result<Vec<_>, _> = all.collect();
    match all {
        Ok(all) if all.is_empty() => Err(words(&"no certificate in it")),
        Ok(all) => Ok(all),
        Err(why) => Err(words(&why)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::net::Serving;
    use crate::net::link::{self, Dialled, Dialler, Hello, Welcome};
    use crate::net::tests::config;

    /// Members of one authority, whose certificates name these addresses.
    fn members<const N: usize>(directory: &Path, addresses: [&str; N]) -> [Tls; N] {
        let make = |name: &str, more: &[&str]| {
            let [certificate, key] = ["pem", "key"].map(|end| format!("{name}.{end}"));
            let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
            let mut command = Command::new("openssl");
            command.args(new.split(' ')).args(more);
            command.args(["-subj", "/CN=test", "-keyout", &key, "-out", &certificate]);
            let made = command.current_dir(directory).output().unwrap();
            let said = String::from_utf8_lossy(&made.stderr);
            assert!(made.status.success(), "{said}");
            [certificate, key].map(|file| directory.join(file))
        };
        let [authority, _] = make("ca", &[]);
        addresses.map(|address| {
            let names = format!("subjectAltName=IP:{address}");
            let signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", &names];
            let ends = ["-addext", "basicConstraints=critical,CA:FALSE"];
            let [certificate, key] = make(address, &[&signed[..], &ends].concat());
            Tls {
                certificate,
                key,
                authority: authority.clone(),
            }
        })
    }

    #[test]
    fn a_server_that_its_certificate_does_not_name_neither_begins_nor_comes_in() {
        let directory = tempfile::tempdir().unwrap();
        let plain = config(2);
        let [own, free] = [0, 1].map(|index| plain.servers[index]);
        let [named, nameless] = members(directory.path(), [&own.ip().to_string(), "192.0.2.1"]);
        let by = |tls: &Tls| Config {
            servers: vec![own],
            tls: Some(tls.clone()),
            ..plain.clone()
        };
        let ours = by(&named);
        match Serving::begin(&by(&nameless), 0).err() {
            Some(Ended::Tls(why)) => {
                let remedy = format!("(subjectAltName=IP:{})", own.ip());
                assert!(why.contains(&remedy), "{why}");
            }
            other => panic!("{other:?}"),
        }
        let serving = Serving::begin(&ours, 0).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        // As a server that does not look at its own.
        let asks = |tls: &Tls| {
            let security = Security::of(Some(tls)).unwrap();
            let hello = Hello {
                pool: ours.mark(),
                birth: 0,
                dialler: Dialler::NewServer(free),
            };
            let door = Dialled {
                to: own,
                security: &security,
                hello: &hello,
            };
            loop {
                match link::dial(&door) {
                    Ok((_, Welcome::Later(_))) => {}
                    Ok((_, welcome)) => return welcome,
                    Err(why) => assert!(Instant::now() < until, "{why}"),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        match asks(&nameless) {
            Welcome::Never(why) => assert!(why.contains("its certificate"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(asks(&named), Welcome::In { .. }));
        serving.stop();
        serving.stop();
        serving.wait().unwrap();
    }
}
