"""A TextWorld game made by the tests: two rooms, two points, one way to win and one to lose."""

from pathlib import Path

from contracts.rollout import Prompt

WAY = ("open chest", "go east", "take coin")


def tiny_game(folder: Path) -> Path:
    """An attic with a closed chest and a toadstool; east of it a cellar: a coin, a feather on a shelf.

    Opening the chest gives a point, taking the coin another; with both the game is won. Eating loses it.
    """
    from textworld import GameMaker, GameOptions
    from textworld.generator.game import Event, Quest

    options = GameOptions()
    options.seeds = 0
    maker = GameMaker(options)
    attic = maker.new_room("attic", desc="A dusty room.")
    cellar = maker.new_room("cellar", desc="A damp room.")
    maker.connect(attic.east, cellar.west)
    chest = maker.new(type="c", name="chest")
    chest.add_property("closed")
    toadstool, coin = maker.new(type="f", name="toadstool"), maker.new(type="o", name="coin")
    toadstool.add_property("edible")
    attic.add(chest, toadstool)
    shelf, feather = maker.new(type="s", name="shelf"), maker.new(type="o", name="feather")
    shelf.add(feather)
    cellar.add(coin, shelf)
    maker.set_player(attic)
    maker.quests = [
        Quest(win_events=[Event(conditions={maker.new_fact("open", chest)})]),
        Quest(
            win_events=[Event(conditions={maker.new_fact("in", coin, maker.inventory)})],
            fail_events=[Event(conditions={maker.new_fact("eaten", toadstool)})],
        ),
    ]
    maker.set_walkthrough(list(WAY))
    return Path(maker.compile(str(folder / "tiny.z8")))


def prompt_of(game: Path) -> Prompt:
    return Prompt("textworld/train/0", "tiny", meta={"game": str(game)})
