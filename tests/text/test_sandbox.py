"""Chat templates that try to run, to grow or to reach without end."""

from __future__ import annotations

import tracemalloc
from time import process_time

import pytest

from farthing.core import RequestError
from farthing.text import ChatTemplate, Tokenizer

LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}"
DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
POWERS = "{% set ns = namespace(x=7) %}{% for i in range(60) %}"
NESTING = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = "
BIG = "{% set big = 'x' * 1000000 %}"


@pytest.mark.parametrize(
    "source",
    [
        # Time.
        LOOPS + "{% endfor %}{% endfor %}",
        LOOPS + "text{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{{ range(10000000000) | list }}",
        "{{ 9 ** 99999999 }}",
        POWERS + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
        # Size.
        "{{ 'x' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        DOUBLING + "{% set ns.x = ns.x | replace('', ns.x) %}{% endfor %}",
        DOUBLING + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        DOUBLING + "{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        DOUBLING + "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
        DOUBLING + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        NESTING + "[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        NESTING + "(ns.x, ns.x) %}{% endfor %}{{ ns.x == 1 }}",
        NESTING + "{'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}",
        NESTING + "[ns.x] * 9 %}{% endfor %}{{ ns.x | string }}",
        NESTING + "dict(a=ns.x, b=ns.x) %}{% endfor %}{{ 'x' ~ ns.x }}",
        "{% set ns = namespace(x=1) %}{% set ns.y = namespace(x=ns) %}{{ ns.y }}",
        BIG + "{{ [big] * 10000 }}",
        BIG + "{% for i in range(90000) %}{{ big }}{% endfor %}",
        BIG + "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}"
        "{% set ns.l = ns.l + [big[1:]] %}{% endfor %}",
        BIG + "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}"
        "{% set ns.l = ns.l + [big | upper] %}{% endfor %}",
        BIG + "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}"
        "{% set ns.l = ns.l + [big.split(' ')] %}{% endfor %}",
        BIG + "{{ raise_exception([big] * 10000) }}",
        BIG + "{{ ([big] * 10000) | upper }}",
        BIG + "{{ ([big] * 10000) | replace('a', 'b') }}",
        BIG + "{{ [1] | join([big] * 10000) }}",
        "{% for i in range(90000) %}{% set x = range(90000) | list %}{% endfor %}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ {'a': 1} | tojson(indent=1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ lipsum(1000000000) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{{ (1).to_bytes(1000000000) }}",
        # Reach.
        "{{ ''.__class__.__mro__ }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages | map(attribute='__class__') | list | first | string | length / 0 }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ messages.append(1) }}",
        "{% import 'os' as os %}",
    ],
)
def test_a_hostile_template_ends_in_an_error_soon_and_small(
    source: str, qwen_tokenizer: Tokenizer
) -> None:
    template = ChatTemplate(source, qwen_tokenizer)
    ChatTemplate("warm", qwen_tokenizer).render([])
    tracemalloc.start()
    start = process_time()
    try:
        with pytest.raises(RequestError, match="chat template"):
            template.render([{"role": "user", "content": "Hi"}])
        assert process_time() - start < 5
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages['__class__'] }}",
    ],
)
def test_what_leads_into_python_reads_as_undefined(source: str, qwen_tokenizer: Tokenizer) -> None:
    assert ChatTemplate(source, qwen_tokenizer).render([]) == ""


def test_a_long_chat_stays_within_the_bounds(qwen_tokenizer: Tokenizer) -> None:
    template = ChatTemplate(
        "{% set ns = namespace(l=[], s='') %}"
        "{% for m in messages %}{% set ns.l = ns.l + [m.content | trim] %}{% endfor %}"
        "{{ ns.l | join('\n') }}",
        qwen_tokenizer,
    )
    chat = [{"role": "user", "content": f" {i} " + "word " * 100} for i in range(1000)]
    assert template.render(chat) == "\n".join(message["content"].strip() for message in chat)


def test_an_overlong_template_is_refused(qwen_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="1048577 characters"):
        ChatTemplate("x" * (2**20 + 1), qwen_tokenizer).render([])
