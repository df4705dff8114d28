"""What a client must see of a gateway's tools through a sidecar, whichever client it is."""

WRITE = "toggle-simulated-logging"


def told_nothing_was_sent(answer, code, operation):
    """A refusal as a model reads it: what it is, that the tool did not run, and what to do next."""
    error = answer.error
    assert error["code"] == code, answer
    assert error["message"].startswith("Nothing was sent. "), answer
    assert error["retryable"] is False and error["details"]["sent"] is False, answer
    assert answer.is_error is not False, answer
    if answer.meta is not None:
        assert answer.effect["refused"] == code, answer
        assert answer.effect["operation"] == operation, answer


def told_how_to_confirm(answer, operation):
    told_nothing_was_sent(answer, "confirmation_required", operation)
    error = answer.error
    assert operation in error["message"], answer
    assert "irreversible" in error["message"] or "same call" in error["message"], answer
    assert "the argument `confirm`" in error["message"], answer
    assert error["details"]["turn"] == "agent: confirm the call", answer
    assert error["details"]["confirm"]["token"] == answer.token, answer


def is_alive(client, said):
    answer = client.call("echo", {"message": said})
    assert not answer.is_error and said in answer.text, answer
    if answer.meta is not None:
        assert answer.effect["class"] == "read", answer
        assert answer.effect["operation"] == "everything.echo", answer


def was_made(answer, word):
    """The tool ran, once more: it says in turn that it started and that it stopped."""
    assert not answer.is_error and answer.text.startswith(word), answer
    if answer.meta is not None:
        assert answer.effect["outcome"] == "accepted" and answer.effect["entry"], answer
        assert not answer.effect.get("replayed"), answer


def asked(client, sends_meta, keeps_connection):
    """Lists, reads, is refused, confirms, repeats; after each the session is alive."""
    tools = client.tools()
    assert "echo" in tools and "get-sum" in tools, tools
    assert "confirm" in tools[WRITE]["properties"], tools[WRITE]
    assert "confirm" not in tools["echo"]["properties"], tools["echo"]
    is_alive(client, "a read")

    first = client.call(WRITE, {})
    told_how_to_confirm(first, "everything.logging")
    is_alive(client, "after a refusal")

    wrong = client.call(WRITE, {"confirm": "tbc1_invented"})
    told_nothing_was_sent(wrong, "confirmation_mismatch", "everything.logging")
    is_alive(client, "after a token that nobody gave")

    def confirmed(token):
        if sends_meta:
            return client.call(WRITE, {}, {"takeback/confirm": token})
        return client.call(WRITE, {"confirm": token})

    made = confirmed(first.token)
    was_made(made, "Started")
    is_alive(client, "after a confirmed write")

    # Nothing more is made of a spent token. Whoever is known to have had the answer is told so, anybody
    # else is given it.
    repeated = confirmed(first.token)
    if repeated.text == made.text:
        assert not repeated.is_error, repeated
        if repeated.meta is not None:
            assert repeated.effect["replayed"], repeated
            assert repeated.effect["entry"] == made.effect["entry"], repeated
    else:
        told_nothing_was_sent(repeated, "confirmation_mismatch", "everything.logging")
        assert "made before and accepted" in repeated.error["message"], repeated
    is_alive(client, "after a spent token")

    again = client.call(WRITE, {})
    if not keeps_connection and again.text == made.text:
        # It ended with its answer, and not long enough ago, or not in order: nobody knows who read that.
        assert again.effect["replayed"], again
    else:
        told_how_to_confirm(again, "everything.logging")
        assert "made before and accepted" in again.error["message"], again
        # The tool is a switch of its session.
        made = "Stopped" if keeps_connection else "Started"
        was_made(client.call(WRITE, {"confirm": again.token}), made)
        is_alive(client, "after a write confirmed by an argument")

    undeclared = client.call("get-sum", {"a": 1, "b": 2})
    told_how_to_confirm(undeclared, "_undeclared")
    is_alive(client, "after an undeclared call")


def in_the_protocol(client):
    """A client that can be asked is asked, once and in words; its no makes no call, and its yes does."""
    declined = client.call(WRITE, {})
    assert len(declined.asked) == 1 and "everything.logging" in declined.asked[0], declined
    told_nothing_was_sent(declined, "confirmation_declined", "everything.logging")
    assert "did not confirm" in declined.error["message"], declined
    is_alive(client, "after a no")

    accepted = client.call(WRITE, {})
    assert len(accepted.asked) == 1, accepted
    was_made(accepted, "Started")
    is_alive(client, "after a yes")
