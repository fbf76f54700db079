//! Finding a target and getting to it.

use anyhow::{Context, Result, bail};

use crate::lab::{Lab, Portal, Way, expect_eq};

/// The discovery log names the subsystem.
pub(super) fn discover(lab: &mut Lab) -> Result<()> {
    let Portal { address, port } = lab.target.portal(Way::First);
    let log = lab.json(&format!("nvme discover -t tcp -a {address} -s {port} -o json"))?;
    let records = log["records"].as_array().context("the log has records")?;
    let ours = records
        .iter()
        .find(|record| record["subnqn"] == lab.target.nqn())
        .with_context(|| format!("{} is not in {log}", lab.target.nqn()))?;
    expect_eq("trtype", ours["trtype"].as_str(), Some("tcp"))?;
    expect_eq("trsvcid", ours["trsvcid"].as_str(), Some(port.to_string().as_str()))
}

/// A plain connection gives a block device of the right size.
pub(super) fn plain(lab: &mut Lab) -> Result<()> {
    usable(lab, "")
}

/// Header and data digests, alone and together.
pub(super) fn with_digests(lab: &mut Lab) -> Result<()> {
    for digests in ["--hdr-digest", "--data-digest", "--hdr-digest --data-digest"] {
        usable(lab, digests).with_context(|| format!("with {digests}"))?;
    }
    Ok(())
}

/// Connecting leaves nothing behind that gets in the way of the next time.
pub(super) fn again_and_again(lab: &mut Lab) -> Result<()> {
    for time in 0..5 {
        usable(lab, "--nr-io-queues=2").with_context(|| format!("time {time}"))?;
    }
    Ok(())
}

/// Each side proves itself to the other.
pub(super) fn authenticate(lab: &mut Lab) -> Result<()> {
    let secrets = lab.secrets.clone().context("secrets were asked for")?;
    usable(lab, &format!("--dhchap-secret='{}'", secrets.host)).context("host only")?;
    let both =
        format!("--dhchap-secret='{}' --dhchap-ctrl-secret='{}'", secrets.host, secrets.controller);
    usable(lab, &both).context("host and controller")
}

/// Neither no key nor another key opens the door, and the right one does afterwards.
pub(super) fn wrong_secret(lab: &mut Lab) -> Result<()> {
    let secrets = lab.secrets.clone().context("secrets were asked for")?;
    let wrong = format!("--dhchap-secret='{}'", secrets.controller);
    // A controller that vouches for itself with another key than expected is not trusted.
    let impostor =
        format!("--dhchap-secret='{}' --dhchap-ctrl-secret='{}'", secrets.host, secrets.host);
    for options in ["", &wrong, &impostor] {
        let Portal { address, port } = lab.target.portal(Way::First);
        let attempt =
            lab.try_sh(&format!("nvme connect -t tcp -a {address} -s {port} -n $NQN {options}"))?;
        if attempt.status == 0 {
            bail!("connected with {options:?}");
        }
    }
    usable(lab, &format!("--dhchap-secret='{}'", secrets.host))
}

/// Connects, writes and reads a little, disconnects.
fn usable(lab: &mut Lab, options: &str) -> Result<()> {
    let controller = lab.connect(Way::First, options)?;
    let disk = lab.disk()?;
    let script = format!(
        "dd if=/dev/urandom of=/tmp/sample bs=64k count=4 2>&1; \
         dd if=/tmp/sample of={disk} bs=64k oflag=direct 2>&1; \
         dd if={disk} of=/tmp/back bs=64k count=4 iflag=direct 2>&1; cmp /tmp/sample /tmp/back; \
         nvme disconnect -d {controller}; await '[ -z \"$(controllers)\" ]'"
    );
    lab.sh(&script).map(drop)
}
