"""What the tasks of pipeline.yaml and fan.yaml do. Start it with:

talka up --store sqlite:///etl.sqlite --handlers examples/etl/handlers.py
talka submit examples/etl/pipeline.yaml
talka submit examples/etl/fan.yaml
"""

from collections import Counter

from talka import HandlerTask, handler

CITIES = ("Lima", "Oslo", "Pune", "Kobe")


@handler("extract")
async def extract(task: HandlerTask) -> dict[str, list[list[str]]]:
    """Orders, in as many parts as there are tasks to clean them. Some have no amount, as in life."""
    rows, parts = task.config["rows"], task.config["parts"]
    orders = [f"{CITIES[number % 4]},{'' if number % 10 == 0 else number % 97}" for number in range(rows)]
    task.log(f"{rows} orders in {parts} parts")
    return {"parts": [orders[part::parts] for part in range(parts)]}


@handler("clean")
async def clean(task: HandlerTask) -> dict[str, object]:
    """One part, without the orders that have no amount."""
    if task.attempt <= task.config.get("fails", 0):
        # A service that is not there at once: the next attempt comes after a while and finds it.
        raise ConnectionError(f"the rates are not there yet, attempt {task.attempt}")
    # In fan.yaml this task is for an element of the parts; in pipeline.yaml its config says which part it is for.
    orders = task.item if task.index is not None else task.inputs["extract"]["parts"][task.config["part"]]
    amounts: Counter[str] = Counter()
    dropped = 0
    for order in orders:
        city, _, amount = order.partition(",")
        if amount:
            amounts[city] += int(amount)
        else:
            dropped += 1
    task.log(f"{len(orders) - dropped} orders kept, {dropped} dropped")
    return {"amounts": dict(amounts), "dropped": dropped}


@handler("merge")
def merge(task: HandlerTask) -> dict[str, object]:
    """All parts together. A plain function: it runs in a thread of its core."""
    parts = task.inputs["clean"] if "clean" in task.inputs else task.inputs.values()
    amounts: Counter[str] = Counter()
    for part in parts:
        amounts.update(part["amounts"])
    return {"amounts": dict(sorted(amounts.items())), "dropped": sum(part["dropped"] for part in parts)}


@handler("report")
def report(task: HandlerTask) -> str:
    merged = task.inputs["merge"]
    best = max(merged["amounts"], key=merged["amounts"].get)
    return f"{best} ordered most: {merged['amounts'][best]}. {merged['dropped']} orders had no amount."
