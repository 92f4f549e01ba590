//! Who may join: members prove by certificates that the pool's authority has let them in, both sides of each connection.
//!
//! TLS 1.3 only. A server's certificate must name its address; a client's may name anything. Who has a certificate may be a client
//! or a server, and read and write everything: there are no rights within a pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use super::Ended;

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
