//! QEMU's control connection: one JSON object a line.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// QEMU answers at once, or it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// An open control connection.
pub(super) struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Qmp {
    /// Takes part in the greeting.
    pub(super) fn greet(stream: UnixStream) -> Result<Qmp> {
        stream.set_read_timeout(Some(PATIENCE)).context("set a deadline")?;
        let writer = stream.try_clone().context("share the control socket")?;
        let mut qmp = Qmp { reader: BufReader::new(stream), writer };
        let greeting = qmp.read_line()?;
        if greeting.get("QMP").is_none() {
            bail!("QEMU greeted with {greeting}");
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs one command and returns what it returns.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.writer, "{line}").with_context(|| format!("ask QEMU to {command}"))?;
        loop {
            let mut answer = self.read_line().with_context(|| format!("QEMU {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {command}: {error}");
            }
            // Everything else is an event.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Runs a command of the human monitor, which prints only when it fails.
    pub(super) fn human(&mut self, line: &str) -> Result<()> {
        let printed = self.execute("human-monitor-command", &json!({ "command-line": line }))?;
        match printed.as_str().map(str::trim) {
            Some("") => Ok(()),
            _ => bail!("QEMU refused `{line}`: {printed}"),
        }
    }

    fn read_line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line).context("read from QEMU")?;
        if length == 0 {
            bail!("QEMU ended");
        }
        serde_json::from_str(&line).with_context(|| format!("understand QEMU's {line:?}"))
    }
}
