//! Tests of the opening.
