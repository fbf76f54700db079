//! Tests of the journal on a disk that crashes.
