import atexit, linecache, os, sys

def save_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    call = os.environ.get("OCTOMESH_CALL", "call").replace("/", "-")
    for number in pyplot.get_fignums()[:20]:
        pyplot.figure(number).savefig("figure-%s-%d.png" % (call, number))

code = sys.stdin.read()
sys.stdin = open(os.devnull)
atexit.register(save_figures)
linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
scope = {"__name__": "__main__", "__builtins__": __builtins__}
sys.path.insert(0, os.getcwd())
try:
    exec(compile(code, "<code>", "exec"), scope)
except SystemExit:
    raise
except BaseException as error:
    import traceback
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    traceback.print_exception(type(error), error, trace)
    sys.exit(1)
