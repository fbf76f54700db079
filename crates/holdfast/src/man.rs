//! `holdfast man`: manual pages from the same definitions as the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};

/// Options of `man`.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// The folder to write them into, such as /usr/local/share/man/man1
    folder: PathBuf,
}

impl ManArgs {
    pub(crate) fn run(self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        let mut cli = crate::cli::with_words(crate::Cli::command());
        cli.build();
        write(&self.folder, &cli, "holdfast")
    }
}

/// A page for this command and, below it, for each of its own.
fn write(folder: &Path, command: &Command, name: &str) -> Result<()> {
    let page = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    std::fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write(folder, below, &format!("{name}-{}", below.get_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let typed = ManArgs { folder: folder.path().to_owned() };
        typed.run().unwrap();
        for name in ["holdfast", "holdfast-volume", "holdfast-volume-create", "holdfast-up"] {
            let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}");
        }
    }
}
