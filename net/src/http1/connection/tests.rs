use futures_lite::io::Cursor;

use super::*;

struct Nothing;

impl Handler for Nothing {
    type Admitted = ();

    fn on_head(&self, _: &Head<'_>) -> HeadDecision<()> {
        HeadDecision::Body {
            bytes_max: 0,
            admitted: (),
        }
    }

    async fn handle(&self, _: Request, (): ()) -> Response {
        self.refusal(Refusal::Malformed(crate::http1::Doubt::Host))
    }

    fn refusal(&self, _: Refusal) -> Response {
        Response::fixed(400, "")
    }
}

/// The stream of these tests is never polled; it only has the traits.
type Stream = Cursor<Vec<u8>>;

fn size_of_future<F>(_: impl FnOnce(Entry, Rc<Nothing>, Stream, SocketAddr) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn a_connection_is_small() {
    let bytes = size_of_future(run::<Nothing, Stream>);
    assert!(
        bytes <= 1024,
        "{bytes} bytes of every connection, besides the socket's and the handler's"
    );
}
