//! Short names for ids.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// Ids in the order they are first mentioned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    ids: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
}

impl Names {
    /// The id of this name.
    pub(crate) fn id<T: FromStr<Err: Debug>>(&mut self, name: &str) -> T {
        let next = self.ids.len() + 1;
        let id = self.ids.entry(name.to_owned());
        let id = id.or_insert_with(|| format!("00000000-0000-4000-8000-{next:012}")).clone();
        self.names.insert(id.clone(), name.to_owned());
        good(&id)
    }

    /// The id of a name that was mentioned.
    pub(crate) fn known<T: FromStr<Err: Debug>>(&self, name: &str) -> T {
        good(self.ids.get(name).unwrap_or_else(|| panic!("{name} was never mentioned")))
    }

    /// The name of an id.
    pub(crate) fn name(&self, id: impl Display) -> String {
        let id = id.to_string();
        self.names.get(&id).cloned().unwrap_or(id)
    }
}

/// What is written by hand here is right.
pub(crate) fn good<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
}
