//! What is typed in more than one command: sizes and secrets.

use model::Size;
use nvme::auth::{BadSecret, Secret};

/// A size, such as `4096`, `128KiB` or `10GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<Size>().map(|size| size.bytes().0).map_err(|error| error.to_string())
}

/// A secret from `DHHC-1:…`, or from `@FILE`.
pub(crate) fn secret(text: &str) -> Result<Secret, String> {
    match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {path}: {error}"))?
            .parse()
            .map_err(|error: BadSecret| format!("{path}: {error}")),
        None => text.parse().map_err(|error: BadSecret| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_with_an_i_count_by_1024() {
        assert_eq!((bytes("4KiB"), bytes("4Ki"), bytes("4k")), (Ok(4096), Ok(4096), Ok(4000)));
        assert!(bytes("much").unwrap_err().contains("10GiB"));
    }

    #[test]
    fn a_secret_comes_as_text_or_from_a_file() {
        let known = Secret::new(&[3; 32], None).unwrap();
        let text = known.to_text();
        assert_eq!(secret(&text).unwrap(), known);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("{}\n", text.as_str())).unwrap();
        assert_eq!(secret(&format!("@{}", path.display())).unwrap(), known);
        std::fs::write(&path, "hunter2").unwrap();
        let refused = secret(&format!("@{}", path.display())).unwrap_err();
        assert!(refused.contains("secret") && !refused.contains("hunter2"), "{refused}");
        assert!(secret("@/nonexistent").unwrap_err().contains("/nonexistent"));
    }
}
