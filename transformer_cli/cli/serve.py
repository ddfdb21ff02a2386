"""`tx serve`: a trained run over HTTP, with a page to type into."""

from __future__ import annotations

from typing import Annotated

import typer

from transformer_cli.cli import console
from transformer_cli.cli.options import Config, Json, Models, Quiet, Traceback, TrainedOverrides
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line

NEEDED = ("starlette", "uvicorn", "prometheus_client")


def serve(
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="The address to listen on; 0.0.0.0 lets everybody in."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 takes any that is free.")
    ] = 8000,
    models: Models = None,
    config: Config = None,
    overrides: TrainedOverrides = None,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Serve a trained model over HTTP: a page to type into, and JSON for programs.

    POST /translate takes {"texts": [...]} and answers like `tx translate --json`, POST /attention like
    `tx visualize-attention`; /health, /metrics (Prometheus) and /openapi.json describe the service. Waiting requests
    are translated together. --set serving.KEY=VALUE limits what a request may have and how long it may take;
    decoding.KEY sets the search.

    Only this machine can reach it unless --host says otherwise. There is no password and no TLS: to let others in, put
    a proxy that has both in front of it. Ctrl-C, SIGTERM or a closed terminal stops it once the accepted requests are
    answered.

    With --json an object with address, model and engine goes to stdout once it is ready.

    It needs its extra: pip install -e '.[serve]' where tx was cloned to.

    Examples:
      tx serve -m runs/tiny
      tx serve --port 8080 --set decoding.beam_size=1
      tx serve --host 0.0.0.0 --set serving.deadline_s=5
    """
    from transformer_cli.needs import needed

    for package in NEEDED:
        needed(package)

    from transformer_cli.cli.trained import open_several, tell_compiler
    from transformer_cli.cli.unseen import Unseen
    from transformer_cli.serving.server import address_of, bound_to, server

    with bound_to(host, port) as bound:  # a port that is taken is said before anything takes time
        runs, settings = open_several(models, config, ["decoding.workers=1", *(overrides or ())])
        if settings.decoding.workers != 1:
            raise UsageError("decoding.workers: a service translates in one process", hint="leave it out")
        tell_compiler(runs, settings)  # the first who asks would else wait for it

        from transformer_cli.serving.app import make_app
        from transformer_cli.serving.guard import names
        from transformer_cli.serving.service import Service

        known = Unseen.by(runs).known
        service = Service(runs, settings, mark=lambda texts, found: Unseen(known).mark(texts, found), tell=console.say)
        app = make_app(service, hosts=names(bound, settings.serving.allowed_hosts), tell=console.warn)
        bound.listen()
        console.say(f"engine: {service.translator.name}")
        console.say(f"serving at {address_of(bound)}, until Ctrl-C")
        if json_output:
            said = {"address": address_of(bound), "model": service.name, "engine": service.translator.name}
            console.result(json_line(said))
        with console.pulse.paused():  # it waits for others
            server(app, deadline_s=settings.serving.deadline_s).run(sockets=[bound])
