//! HTTP serving and calling on a glommio core, generic over a handler.
