//! Certificates of a cluster.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The authority of one cluster, in a directory.
pub(crate) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Whom a certificate is for.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    pub(crate) organization: &'a str,
}

impl Authority {
    pub(crate) fn new(dir: &Path) -> Result<Authority> {
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "cluster");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        fs::write(dir.join("ca.crt"), params.self_signed(&key)?.pem())?;
        fs::write(dir.join("ca.key"), key.serialize_pem())?;
        // What the tokens of service accounts are signed with.
        let accounts = KeyPair::generate()?;
        fs::write(dir.join("accounts.key"), accounts.serialize_pem())?;
        fs::write(dir.join("accounts.pub"), accounts.public_key_pem())?;
        Ok(Authority { dir: dir.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Writes `FILE.crt` and `FILE.key`, for servers under these names and for clients.
    pub(crate) fn issue(&self, file: &str, subject: &Subject<'_>, names: &[&str]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, subject.name);
        params.distinguished_name.push(DnType::OrganizationName, subject.organization);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.dir.join(format!("{file}.crt")), certificate.pem())?;
        fs::write(self.dir.join(format!("{file}.key")), key.serialize_pem())?;
        Ok(())
    }
}
