#!/bin/bash
# extras.sh TREE: after apply.py: the tidy rules (vocabulary, tour), the two tours, and a test that earlier names are still read.
set -e
here=$(cd "$(dirname "$0")" && pwd); cd "$1"
[ -e crates/xtask/src/tidy/vocabulary.rs ] && { echo "already there"; exit 0; }
cp --no-target-directory $here/extra/vocabulary.rs.txt crates/xtask/src/tidy/vocabulary.rs
cp --no-target-directory $here/extra/tour.rs.txt crates/xtask/src/tidy/tour.rs
sed -i 's/^mod specification;$/mod specification;\nmod tour;\nmod vocabulary;/' crates/xtask/src/tidy.rs
mkdir -p docs/tour && cp $here/extra/tour/*.md docs/tour/
cat $here/extra/envelope_test.rs.txt >> crates/model/tests/it/envelope.rs
cargo fmt --all
