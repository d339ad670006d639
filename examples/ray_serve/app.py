"""A Ray Serve application: each replica has an engine, on the devices that Ray gives it.

pip install 'shardwise[serve]' 'ray[serve]'
serve run app:app model=/models/llama3.2-1b replicas=2 gpus=1
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from ray import serve
from starlette.applications import Starlette
from starlette.routing import Mount

from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.http.app import App
from shardwise.serve.http.options import ServerOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import find_model
from shardwise.serve.texts_of_model import ModelGrammar, texts_of_model


def replica(model: str, options: EngineOptions) -> Starlette:
    """The OpenAI API of a new engine, which is closed with the application."""
    found = find_model(model)
    stack = ExitStack()
    engine = stack.enter_context(launched(found, options))
    texts = texts_of_model(found)
    grammar = ModelGrammar(found, texts.stop_tokens)
    api = App(engine, texts, ServerOptions(), grammar=grammar)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with stack:
            yield

    asgi = Starlette(routes=[Mount("/", app=api)], lifespan=lifespan)
    asgi.state.engine = engine
    return asgi


class Replica:
    """An actor; `serve.ingress` gives it `app`, what `replica` returns."""

    app: Starlette

    def check_health(self) -> None:
        """Have Ray replace the replica if its engine has failed."""
        if not self.app.state.engine.stats().healthy:
            raise RuntimeError("the engine has failed; the replica's log says why")


def app(args: dict[str, str]) -> serve.Application:
    """The application for `serve run` and configuration files.

    Args:
        args: `model`, as in `shardwise serve`; `replicas`, their number; `gpus` of each; `context`,
            the longest sequence.
    """
    context = int(args["context"]) if "context" in args else None
    model = args["model"]

    def build() -> Starlette:
        return replica(model, EngineOptions(context=context))

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name="shardwise",
        num_replicas=int(args.get("replicas", 1)),
        ray_actor_options={"num_gpus": float(args.get("gpus", 0))},
        max_ongoing_requests=ServerOptions().most_waiting,  # the engine has its own queue
        graceful_shutdown_timeout_s=ServerOptions().drain_seconds,
        health_check_timeout_s=60,
    )
    return deployment.bind()
