"""Chat templates that do what those of public models do, each in a few lines of our own. {% generation %} stands, by hand,
around what is to be learnt; without these tags the same template is as models bring it.

Each has the tokenizer that it is for (a file of dev/test/tokenizers) and special tokens: the first two begin and end a
text ("" for none), the others are its own. Tags and blocks leave no white space, so that taking them out changes nothing.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    tokenizer: str
    special: tuple[str, ...]
    source: str

    @property
    def plain(self) -> str:
        return re.sub(r"\{% (end)?generation %\}", "", self.source)


def joined(text: str) -> str:
    """The lines of a source without their ends and indentation."""
    return "".join(line.strip() for line in text.splitlines())


PROMPT = "{% if add_generation_prompt %}{{ 'START' }}{% endif %}"


def prompt(start: str) -> str:
    return PROMPT.replace("START", start)


def turns(before: str, behind: str, content: str = "m.content") -> str:
    """Each message between two texts, in which ROLE is its role; learnt to the end of turn, if it is the assistant's."""
    before, end, space = before.replace("ROLE", "' + m.role + '"), *re.fullmatch(r"(.*?)((?:\\n)*)", behind).groups()
    return (
        f"{{{{ '{before}' }}}}{{% if m.role == 'assistant' %}}{{% generation %}}{{{{ {content} + '{end}' }}}}{{% endgeneration %}}"
        f"{{% else %}}{{{{ {content} + '{end}' }}}}{{% endif %}}{{{{ '{space}' }}}}"
    )


IM = ("", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>")
EACH = "{% for m in messages %}"
CALLS = "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
HEADER = "<|start_header_id|>ROLE<|end_header_id|>\\n\\n"
USED = {
    # Qwen 2.5: looks at messages[0], a system message of its own, tools, calls, results as a user's.
    "qwen2.5": (
        "llama3.json",
        IM,
        """
        {% if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}
        {% else %}{{ 'You help.' }}{% endif %}{{ '\\n# Tools' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}
        {% endfor %}{{ '<|im_end|>\\n' }}{% elif messages[0]['role'] != 'system' %}
        {{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
        {% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not (loop.first and tools)) %}
        {{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
        {% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content or '' }}
        {% for call in m.tool_calls or [] %}{{ '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}{% endfor %}
        {{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
        {% elif m.role == 'tool' %}{% if not loop.previtem or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{ '\\n<tool_response>' + m.content + '</tool_response>' }}
        {% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}{% endif %}{% endfor %}
        """
        + prompt("<|im_start|>assistant\\n"),
    ),
    # Qwen 3: answers before the last question lose their thinking; the last one gets an empty one.
    "qwen3": (
        "llama3.json",
        IM,
        """
        {% set ns = namespace(last=-1, found=false) %}{% for m in messages[::-1] %}
        {% if m.role == 'user' and not ns.found %}{% set ns.found = true %}
        {% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}
        {% for m in messages %}{% set words = m.content if m.content is string else '' %}{% if m.role == 'assistant' %}
        {% set thought = m.reasoning_content if m.reasoning_content is string else '' %}
        {% if '</think>' in words %}{% set thought = words.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {% set words = words.split('</think>')[-1].lstrip('\\n') %}{% endif %}
        {{ '<|im_start|>assistant\\n' }}{% generation %}{% if loop.index0 > ns.last and (loop.last or thought) %}
        {{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}{{ words }}"""
        + CALLS
        + """{{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
        {% else %}{{ '<|im_start|>' + m.role + '\\n' + words + '<|im_end|>\\n' }}{% endif %}{% endfor %}
        """
        + prompt("<|im_start|>assistant\\n"),
    ),
    # SmolLM 2: ChatML with a system message of its own.
    "smollm2": (
        "llama3.json",
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        EACH + "{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
        + turns("<|im_start|>ROLE\\n", "<|im_end|>\\n") + "{% endfor %}" + prompt("<|im_start|>assistant\\n"),
    ),
    "llama3": (
        "llama3.json",
        LLAMA3,
        EACH + "{% if loop.first %}{{ bos_token }}{% endif %}" + turns(HEADER, "<|eot_id|>", "m.content | trim")
        + "{% endfor %}" + prompt(HEADER.replace("ROLE", "assistant")),
    ),
    # Llama 3.2: the day, messages sliced, tools in the first question, one call a message.
    "llama3.2": (
        "llama3.json",
        LLAMA3,
        """{{ bos_token }}{% if not date_string is defined %}{% if strftime_now is defined %}
        {% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}
        {% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}
        {% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
        {{ '<|start_header_id|>system<|end_header_id|>\\n\\n' + 'Today: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}
        {% if tools %}{% if messages | length == 0 %}{{ raise_exception('no first question for the tools') }}{% endif %}
        {{ '<|start_header_id|>user<|end_header_id|>\\n\\n' }}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}
        {{ messages[0]['content'] | trim + '<|eot_id|>' }}{% set messages = messages[1:] %}{% endif %}
        {% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}
        {{ raise_exception('one call a message') }}{% endif %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {% generation %}{{ '{"name": ' }}{{ m.tool_calls[0].function.name | tojson }}{{ ', "parameters": ' }}
        {{ m.tool_calls[0].function.arguments | tojson }}{{ '}<|eot_id|>' }}{% endgeneration %}
        {% elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}
        {% else %}""" + turns(HEADER, "<|eot_id|>", "m.content | trim") + "{% endif %}{% endfor %}"
        + prompt(HEADER.replace("ROLE", "assistant")),
    ),
    # Llama 2: begin and end around each pair, the system message inside the first question.
    "llama2": (
        "llama2.json",
        ("<s>", "</s>"),
        """{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% else %}
        {% set system = false %}{% endif %}""" + ALTERNATES + """{% for m in messages %}{% if m.role == 'user' %}
        {{ bos_token + '[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system else '') + m.content.strip()
        + ' [/INST]' }}{% else %}{% generation %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}
        {% endfor %}""",
    ),
    "mistral.v1": (
        "llama2.json",
        ("<s>", "</s>"),
        "{{ bos_token }}" + ALTERNATES + """{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
        {% elif m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}
        {% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}""",
    ),
    # Mistral v3: tools stand before the last question, so that each question moves them.
    "mistral.v3": (
        "llama2.json",
        ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
        """{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}
        {% if m.role == 'user' %}{% if tools and m == asked[-1] %}{{ '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}
        {{ '[/AVAILABLE_TOOLS]' }}{% endif %}{{ '[INST] ' + m.content + '[/INST]' }}
        {% elif m.tool_calls %}{% generation %}{{ '[TOOL_CALLS] ' }}{{ m.tool_calls | tojson }}{{ eos_token }}{% endgeneration %}
        {% elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}
        {% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content }}
        {% else %}{{ raise_exception('a role that is not known: ' + m.role) }}{% endif %}{% endfor %}""",
    ),
    "zephyr": (
        "llama2.json",
        ("<s>", "</s>"),
        EACH + turns("<|ROLE|>\\n", "</s>\\n") + "{% endfor %}" + prompt("<|assistant|>\\n"),
    ),
    "vicuna": (
        "llama2.json",
        ("<s>", "</s>"),
        """{{ bos_token + 'A talk.' }}{% for m in messages %}{% if m.role == 'user' %}{{ ' USER: ' + m.content }}
        {% elif m.role == 'assistant' %}{{ ' ASSISTANT:' }}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}
        {% else %}{{ ' ' + m.content }}{% endif %}{% endfor %}""" + prompt(" ASSISTANT:"),
    ),
    # Alpaca: no special token ends a turn.
    "alpaca": (
        "llama3.json",
        ("<|begin_of_text|>", "<|end_of_text|>"),
        """{% for m in messages %}{% if m.role == 'user' %}{{ '### Instruction:\\n' + m.content + '\\n\\n' }}
        {% elif m.role == 'assistant' %}{{ '### Response:\\n' }}{% generation %}{{ m.content + '\\n\\n' }}{% endgeneration %}
        {% else %}{{ m.content + '\\n\\n' }}{% endif %}{% endfor %}""" + prompt("### Response:\\n"),
    ),
    # Gemma: the assistant is called model, and nobody is system.
    "gemma": (
        "llama2.json",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + ALTERNATES
        + """{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
        {% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<end_of_turn>' }}{% endgeneration %}{% else %}
        {{ m.content | trim + '<end_of_turn>' }}{% endif %}{{ '\\n' }}{% endfor %}""" + prompt("<start_of_turn>model\\n"),
    ),
    # Phi 3: all of a conversation ends with a token of its own, which its last answer has to end with, too.
    "phi3": (
        "llama2.json",
        ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
        EACH + """{% if m.role == 'assistant' %}{{ '<|assistant|>\\n' }}{% generation %}{{ m.content + '<|end|>' }}
        {% if loop.last and not add_generation_prompt %}{{ '\\n' + eos_token }}{% endif %}{% endgeneration %}
        {% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% else %}
        {{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% if loop.last and not add_generation_prompt %}
        {{ eos_token }}{% endif %}{% endif %}{% endfor %}""" + prompt("<|assistant|>\\n"),
    ),
    # DeepSeek R1: no answer keeps its thinking, and the model is given the beginning of one.
    "deepseek": (
        "llama3.json",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        """{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}
        {% set ns.system = ns.system + m.content %}{% endif %}{% endfor %}{{ ns.system }}{% for m in messages %}
        {% if m.role == 'system' %}{% continue %}{% endif %}{% if m.role == 'assistant' %}{{ '<｜Assistant｜>' }}
        {% generation %}{{ m.content.split('</think>')[-1] + eos_token }}{% endgeneration %}
        {% else %}{{ '<｜User｜>' + m.content }}{% endif %}{% endfor %}""" + prompt("<｜Assistant｜><think>\\n"),
    ),
    # OLMo 2: a line ends between messages, but not behind the last one.
    "olmo2": (
        "llama3.json",
        ("<|endoftext|>", "<|endoftext|>"),
        "{{ bos_token }}" + EACH + """{{ '<|' + m.role + '|>\\n' }}{% if m.role == 'assistant' %}{% generation %}
        {{ m.content + eos_token }}{% endgeneration %}{% if not loop.last %}{{ '\\n' }}{% endif %}{% else %}{{ m.content + '\\n' }}
        {% endif %}{% endfor %}""" + prompt("<|assistant|>\\n"),
    ),
    # Command R: a macro, and names of its own.
    "command": (
        "llama3.json",
        ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
        """{% macro head(role) %}{{ '<|START_OF_TURN_TOKEN|>' + {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}.get(role,
        '<|SYSTEM_TOKEN|>') }}{% endmacro %}{{ bos_token }}{% for m in messages %}{{ head(m.role) }}
        {% if m.role == 'assistant' %}{% generation %}{{ m.content.strip() + eos_token }}{% endgeneration %}{% else %}
        {{ m.content.strip() + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
    ),
    # gpt-oss: the last answer ends with another token than those before it.
    "gpt-oss": (
        "llama3.json",
        ("<|startoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|end|>"),
        EACH + """{{ '<|start|>' + m.role }}{% if m.role == 'assistant' %}{% generation %}{{ '<|message|>' + m.content }}
        {{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endgeneration %}{% else %}
        {{ '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}""" + prompt("<|start|>assistant"),
    ),
}  # fmt: skip
CASES = {name: Case(tokenizer, special, joined(source)) for name, (tokenizer, special, source) in USED.items()}
