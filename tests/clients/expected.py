"""What a client must see of a gateway's tools through a sidecar, whichever client it is."""
import re
from dataclasses import dataclass

WRITE = "toggle-simulated-logging"


@dataclass
class Answer:
    text: str
    is_error: bool
    meta: dict

    @property
    def effect(self):
        """The report."""
        return self.meta["effect"]


def token(answer):
    """The confirmation that a refusal asks for, as a model reads it."""
    return re.search(r"tbc1_[A-Za-z0-9_-]+", answer.text).group(0)


async def story(tools, call):
    """Reads, is refused, confirms in both ways; after each the session is alive."""
    assert "echo" in tools and WRITE in tools, tools

    async def alive(said):
        answer = await call("echo", {"message": said})
        assert not answer.is_error and said in answer.text, answer
        assert answer.effect["class"] == "read", answer
        assert answer.effect["operation"] == "everything.echo", answer

    async def refused(name, arguments, operation):
        answer = await call(name, arguments)
        assert answer.is_error, answer
        assert answer.effect["refused"] == "confirmation_required", answer
        assert answer.effect["operation"] == operation, answer
        return answer

    await alive("a read")

    first = await refused(WRITE, {}, "everything.logging")
    await alive("after a refusal")

    confirmed = await call(WRITE, {}, {"takeback/confirm": token(first)})
    assert not confirmed.is_error, confirmed
    assert confirmed.effect["outcome"] == "accepted", confirmed
    assert confirmed.effect["entry"], confirmed
    await alive("after a confirmed write")

    repeated = await call(WRITE, {}, {"takeback/confirm": token(first)})
    assert repeated.effect["replayed"], repeated
    assert repeated.effect["entry"] == confirmed.effect["entry"], repeated
    await alive("after a spent token")

    again = await refused(WRITE, {}, "everything.logging")
    confirmed = await call(WRITE, {"confirm": token(again)})
    assert not confirmed.is_error, confirmed
    assert confirmed.effect["outcome"] == "accepted", confirmed
    await alive("after a write confirmed by an argument")

    undeclared = await refused("get-sum", {"a": 1, "b": 2}, "_undeclared")
    assert undeclared.effect["class"] == "irreversible", undeclared
    await alive("after an undeclared call")
    print("list, read, refused, confirmed in two ways, repeated, undeclared: ok")
