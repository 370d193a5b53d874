//! Serves memory on a unix socket: `memory SOCKET SIZE [TCP-ADDRESS]`. For trying clients and for
//! measuring the front end alone.

use std::sync::Arc;

use cairn_base::ByteSize;
use cairn_device::{Device, MemoryDevice};
use cairn_frontend_nbd::{
    Address, Export, ExportInfo, Exports, Listener, NbdServer, OpenExportError, ServerOptions,
};

struct One(Arc<dyn Device>);

impl Exports for One {
    fn list(&self) -> Vec<ExportInfo> {
        vec![ExportInfo { name: "memory".to_owned(), description: "memory".to_owned() }]
    }

    fn open(&self, name: &str) -> Result<Export, OpenExportError> {
        match name {
            "" | "memory" => Ok(Export {
                device: Arc::clone(&self.0),
                description: "memory".to_owned(),
                read_only: false,
                writes_through: false,
                multi_conn: true,
                dirty_contexts: Vec::new(),
                changed: None,
            }),
            name => Err(OpenExportError::Unknown { name: name.to_owned() }),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, size, rest @ ..] = arguments.as_slice() else {
        return Err("usage: memory SOCKET SIZE [HOST:PORT]".into());
    };
    let size: ByteSize = size.parse()?;
    let mut listeners = vec![Listener::bind(&Address::Unix(socket.into()))?];
    if let [tcp, ..] = rest {
        listeners.push(Listener::bind(&tcp.parse()?)?);
    }
    let exports = Arc::new(One(Arc::new(MemoryDevice::new(size.0))));
    let server = NbdServer::start(listeners, exports, ServerOptions::default())?;
    for address in server.addresses() {
        println!("serving {size} on {address}; end with Ctrl-D");
    }
    // Until the end of standard input; a parked thread costs nothing.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.stop();
    Ok(())
}
