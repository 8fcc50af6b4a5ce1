import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_workers.environments.textworld_text import cleaned, command_of, first_room

VERBS = ("close", "drop", "eat", "examine", "go", "inventory", "look", "open", "put", "take")
TITLE = "\n\n   ________ \n  |        \\\n   \\$$$$$$$$\n    | $$  $$\n     \\$$ \\$$$$$$$$ \n\n"
PROMPT_LINE = f"\n\n\n>{' ' * 128}-= Attic =-0/2"


# ---- what the game prints ----


@pytest.mark.parametrize(
    ("feedback", "expected"),
    [
        (f"\n\n-= Attic =-\nA dusty  room.\n\n\n\nAn exit.{PROMPT_LINE}", "[Attic]\nA dusty room.\nAn exit."),
        (f"\nYou have 2 > 1 coins.{PROMPT_LINE}", "You have 2 > 1 coins."),
        # a question of the parser's: the prompt line lacks the turns
        ("\nWhich do you mean, this or that?\n\n>    -= Attic =-0/", "Which do you mean, this or that?"),
        ("\nTime passes.\n\n>   -= The\nAttic =--3/14\n", "Time passes."),
        ("\nWhat do you want to take?\n\n>", "What do you want to take?"),
        ("It costs $$.\n\n> -= Shop =-1/1", "It costs $$."),
        ("", ""),
        (
            "\nTaken.\n\n\n       *** The End ***\n\nYou scored 1 out of a possible 1, in 2 turns.\n\n\n"
            f"Would you like to RESTART, RESTORE a saved game, QUIT or UNDO the last command?{PROMPT_LINE}",
            "Taken.\n*** The End ***\nYou scored 1 out of a possible 1, in 2 turns.",
        ),
        (f"{TITLE}\nFind the coin!\n\n-= Attic =-\nDusty.{PROMPT_LINE}", "Find the coin!\n[Attic]\nDusty."),
    ],
)
def test_what_a_game_prints_is_cleaned(feedback: str, expected: str) -> None:
    assert cleaned(feedback) == expected


def test_the_objective_is_no_part_of_the_first_room() -> None:
    assert first_room(f"{TITLE}Pay $$$$!\n\n-= Attic =-\nDusty.{PROMPT_LINE}") == "[Attic]\nDusty."
    assert first_room(f"-= Attic =-\nDusty.{PROMPT_LINE}") == "[Attic]\nDusty."
    assert first_room(f"{TITLE}It is dark.{PROMPT_LINE}") == "It is dark."


# ---- what the model writes ----


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (" go east", "go east"),
        ("Go   EAST", "go east"),
        ("\n\n go east\n take coin", "go east"),
        ("go east. take coin", "go east"),
        ("go east.quit", "go east"),
        ("go east, then take coin", "go east"),
        ("go east then take coin", "go east"),
        ("take coin and go east", "take coin"),  # the tracker would miss that the coin was taken
        ("> take the lady's half-full cup!", "take the lady's half-full cup"),
        ('"go east"', "go east"),
        ("go east\u2028quit", "go east"),
        ("go east\r\nquit", "go east"),
        ("take caf\u00e9 \u2615 chair", "take caf chair"),
        ("go east t\u200bhen quit", "go east"),  # what is left out must not hide a word
        ("examine then", "examine"),
        ("look " + "x" * 75, "look " + "x" * 75),
        ("look " + "x" * 76, None),
        ("take all", None),
        ("put Everythings on table", None),  # the game reads nine letters of a word
        *((verb, None) for verb in ("quit", "restart", "save", "restore", "undo", "again", "g", "script")),
        ("tw-extra-infos score", None),
        ("save\u00adgame", None),
        ("east", None),
        ("then go east", None),
        ("...", None),
        ("", None),
        ("\x00\ud800", None),
    ],
)
def test_an_answer_is_one_command_or_none(text: str, command: str | None) -> None:
    assert command_of(text, VERBS) == command


pieces = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [*VERBS, "quit", "save", "restart", "then", "and", "all", ".", "\n", " ", ",", "tw-", "g"]
    ),
)


@given(st.lists(pieces, max_size=8).map("".join) | st.lists(pieces, max_size=8).map(" ".join))
@example("quit")
@example("go east t.hen quit")
def test_whatever_is_written_no_more_than_one_plain_command_comes_out(text: str) -> None:
    command = command_of(
        text, (*VERBS, "quit", "save", "again")
    )  # even if a game calls these verbs of its own
    if command is None:
        return
    assert command.split()[0] in VERBS
    assert set(command) <= set("abcdefghijklmnopqrstuvwxyz0123456789 '-")
    assert not {"then", "and", "all", "everything"} & set(command.split())
    assert len(command) <= 80
    assert command_of(command, VERBS) == command
