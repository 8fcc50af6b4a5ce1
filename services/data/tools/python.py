"""Run Python in a confined process, without network or other processes, in a separate folder."""

from contracts.errors import InputError
from reward_servers.isolation.confined import Confined
from reward_servers.isolation.limits import Limits
from reward_servers.isolation.system_calls import has_seccomp

# The value of a last expression is printed, as in a notebook; so is the last line of an error.
PROGRAM = """
import ast, sys, traceback

def run(text):
    names = {{"__name__": "__main__"}}
    try:
        tree = ast.parse(text, "program.py")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "program.py", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "program.py", "eval"), names)
            if value is not None:
                print(repr(value))
    except Exception as error:
        steps = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in steps if frame.f_code.co_filename == "program.py"]
        print(*(f"line {{line}}:" for line in lines[-1:]), f"{{type(error).__name__}}: {{error}}")

run({code!r})
"""


class Python:
    """The tool `python`. Each program has its own process, and remembers nothing of earlier ones.

    Args:
        seconds: computing time; a program may take three times as long by the clock.
        memory_gib: memory beyond Python's own.

    Raises:
        InputError: this machine can't confine a program.
    """

    def __init__(self, seconds: float = 1.5, memory_gib: float = 1.0) -> None:
        if not has_seccomp():
            raise InputError(
                "environment.tools: python needs Linux with libseccomp and the package pyseccomp: "
                "pip install whetstone[verifiable], and apt install libseccomp2"
            )
        limits = Limits(seconds=seconds, memory_gib=memory_gib, parallel=1)
        self._confined = Confined("reward_servers.verifiers.code", limits)
        self.python("0")  # starts the server, so that no program's time includes the start

    def python(self, code: str) -> str:
        """Run a Python program, and return what it prints and the value of its last line.

        Args:
            code: the program. It starts afresh each time, without network
        """
        ((outcome,),) = self._confined.run([[{"code": PROGRAM.format(code=code), "stdin": ""}]])
        if outcome.why:
            return f"{outcome.output.strip()}\nThe program was ended: {outcome.why}".strip()
        return outcome.output.strip() or "The program printed nothing."
