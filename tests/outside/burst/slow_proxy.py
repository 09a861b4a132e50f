"""A TCP proxy that delays all that the server sends. Usage: slow_proxy.py PORT-OF-THE-SERVER MILLISECONDS

It prints its own port.
"""

import asyncio
import sys


async def main():
    port, delay = int(sys.argv[1]), int(sys.argv[2]) / 1000

    async def serve(reader, writer):
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            forth = asyncio.ensure_future(pump(reader, server_writer, 0))
            await pump(server_reader, writer, delay)
            forth.cancel()
            server_writer.close()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def pump(reader, writer, delay):
    """Passes on what is read, each part the delay after it arrived."""
    loop = asyncio.get_running_loop()
    try:
        while part := await reader.read(65536):
            loop.call_later(delay, writer.write, part)
    except OSError:
        pass
    loop.call_later(delay, writer.close)
    await asyncio.sleep(delay)


asyncio.run(main())
