//! One call at a time for each volume, snapshot or group.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;
use uuid::Uuid;

/// The objects that calls are working on.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<BTreeSet<Uuid>>>);

/// An object that nobody else works on until this is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive {
    all: InFlight,
    id: Uuid,
}

impl InFlight {
    /// Claims an object, or says that another call is working on it.
    pub(crate) fn claim(&self, id: Uuid) -> Result<Exclusive, Status> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.insert(id) {
            let message = format!("another call for {id} is under way; try again when it ended");
            return Err(Status::aborted(message));
        }
        Ok(Exclusive { all: self.clone(), id })
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_call_is_aborted_until_the_first_ends() {
        let all = InFlight::default();
        let id = Uuid::from_u128(7);
        let first = all.claim(id).unwrap();
        assert_eq!(all.claim(id).unwrap_err().code(), tonic::Code::Aborted);
        assert!(all.claim(Uuid::from_u128(8)).is_ok());
        drop(first);
        assert!(all.claim(id).is_ok());
    }
}
