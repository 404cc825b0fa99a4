"""Part of serve_clients.sh: serve_clients.py ADDRESS.

Structured answers and calls of tools through the clients that people use: openai, litellm, LangChain, LlamaIndex.
"""
import base64
import json
import sys
import warnings
from typing import Literal

import jsonschema
import openai
from pydantic import BaseModel, Field

warnings.filterwarnings("ignore", category=UserWarning, module="pydantic")
address = sys.argv[1]
base = address + "/v1"
client = openai.OpenAI(base_url=base, api_key="sesame", max_retries=0, timeout=300)


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    color: Literal["red", "green", "blue"]


WEATHER = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 20},
                                            "days": {"type": "integer", "minimum": 1, "maximum": 7}},
           "required": ["town", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
                                           "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now", "description": "Tells the time."}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
QUESTION = [{"role": "user", "content": "How is the weather in Ulm?"}]


def expect(condition, what):
    if not condition:
        sys.exit(f"serve_clients.py: {what}")


def check_weather(arguments):
    jsonschema.validate(json.loads(arguments) if isinstance(arguments, str) else arguments, WEATHER)


def of_openai():
    call = dict(model="m", messages=QUESTION, tools=TOOLS, tool_choice=NAMED, temperature=0, max_tokens=100)
    whole = client.chat.completions.create(**call).choices[0]
    expect(whole.finish_reason == "tool_calls" and whole.message.content is None, whole)
    (called,) = whole.message.tool_calls
    expect(called.function.name == "weather", called)
    check_weather(called.function.arguments)
    with client.chat.completions.stream(**call) as stream:
        streamed = stream.get_final_completion().choices[0]
    expect(streamed.finish_reason == "tool_calls", streamed)
    expect(streamed.message.tool_calls[0].function.arguments == called.function.arguments, streamed)
    free = client.chat.completions.create(**dict(call, tool_choice="auto", max_tokens=20)).choices[0]
    expect(free.message.content or free.message.tool_calls, free)
    history = QUESTION + [whole.message.model_dump(),
                          {"role": "tool", "tool_call_id": called.id, "content": "rain"},
                          {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Thanks. And?"}]
    answer = client.chat.completions.create(model="m", messages=history, tools=TOOLS, max_tokens=20).choices[0]
    expect(answer.message.content, answer)
    parsed = client.chat.completions.parse(model="m", messages=QUESTION, response_format=Person, max_tokens=100)
    expect(isinstance(parsed.choices[0].message.parsed, Person), parsed)
    try:
        client.embeddings.create(model="m", input="x")
    except openai.NotFoundError as error:
        expect("/v1/embeddings is not supported" in error.body["message"], error.body)
    else:
        sys.exit("serve_clients.py: embeddings were answered")


def of_openai_responses():
    create = dict(model="m", input="Name a color.", instructions="Be brief.", max_output_tokens=12, temperature=0)
    whole = client.responses.create(**create)
    expect(whole.output_text and whole.status in ("completed", "incomplete"), whole)
    expect(whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens, whole.usage)
    with client.responses.stream(**create) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response() if whole.status == "completed" else None
    expect(text == whole.output_text and (final is None or final.output_text == text), text)
    flat = [dict(tool["function"], type="function", strict=False) for tool in TOOLS]
    called = client.responses.create(model="m", input=QUESTION, tools=flat, max_output_tokens=100,
                                     tool_choice={"type": "function", "name": "weather"})
    (item,) = called.output
    expect(item.type == "function_call" and item.name == "weather", item)
    check_weather(item.arguments)
    after = client.responses.create(model="m", max_output_tokens=12, tools=flat, input=QUESTION + [
        item, {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}])
    expect(after.output, after)
    parsed = client.responses.parse(model="m", input="Who?", text_format=Person, max_output_tokens=100)
    expect(isinstance(parsed.output_parsed, Person), parsed)


def of_files():
    data = "data:text/plain;base64," + base64.b64encode(b"The miller's cat is called Ada.").decode()
    file = {"type": "file", "file": {"filename": "cat.txt", "file_data": data}}
    ask = [{"role": "user", "content": [file, {"type": "text", "text": "What is the cat called?"}]}]
    plain = [{"role": "user", "content": "The miller's cat is called Ada.\n\nWhat is the cat called?"}]
    answers = [client.chat.completions.create(model="m", messages=m, temperature=0, max_tokens=16)
               for m in (ask, plain)]
    expect(answers[0].choices[0].message.content == answers[1].choices[0].message.content, answers)
    part = {"type": "input_file", "filename": "cat.txt", "file_data": data}
    response = client.responses.create(model="m", temperature=0, max_output_tokens=16, input=[
        {"role": "user", "content": [part, {"type": "input_text", "text": "What is the cat called?"}]}])
    expect(response.output_text == answers[0].choices[0].message.content, response)
    broken = {"type": "file", "file": {"filename": "cat.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": [broken]}])
    except openai.BadRequestError as error:
        expect("cat.pdf" in error.body["message"], error.body)
    else:
        sys.exit("serve_clients.py: a broken file was read")


def of_litellm():
    import litellm
    litellm.suppress_debug_info = True
    more = dict(model="openai/m", api_base=base, api_key="sesame", messages=QUESTION, max_tokens=100, temperature=0)
    whole = litellm.completion(tools=TOOLS, tool_choice=NAMED, **more).choices[0]
    expect(whole.finish_reason == "tool_calls", whole)
    check_weather(whole.message.tool_calls[0].function.arguments)
    pieces = list(litellm.completion(tools=TOOLS, tool_choice=NAMED, stream=True, **more))
    arguments = "".join(call.function.arguments or "" for piece in pieces for call in
                        (piece.choices[0].delta.tool_calls or []))
    expect(arguments == whole.message.tool_calls[0].function.arguments, arguments)
    Person.model_validate_json(litellm.completion(response_format=Person, **more).choices[0].message.content)


def of_langchain():
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model="m", base_url=base, api_key="sesame", temperature=0, max_tokens=100)
    for method in ("json_schema", "function_calling"):
        person = chat.with_structured_output(Person, method=method).invoke("Who is it?")
        expect(isinstance(person, Person), f"{method}: {person}")
    answer = chat.bind_tools(TOOLS, tool_choice="weather").invoke("How is the weather in Ulm?")
    (call,) = answer.tool_calls
    check_weather(call["args"])
    history = [HumanMessage("How is the weather in Ulm?"), answer, ToolMessage("rain", tool_call_id=call["id"])]
    expect(isinstance(chat.bind_tools(TOOLS).invoke(history), AIMessage), "a history")
    text = "".join(str(piece.content) for piece in chat.stream("Name a color."))
    expect(text == chat.invoke("Name a color.").content, text)


def of_llama_index():
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    llm = OpenAILike(model="m", api_base=base, api_key="sesame", is_chat_model=True, is_function_calling_model=True,
                     context_window=4096, max_tokens=100, temperature=0)
    person = llm.structured_predict(Person, PromptTemplate("Who is {who}?"), who="it")
    expect(isinstance(person, Person), person)

    def weather(town: str, days: int) -> str:
        """Tells the weather."""
        return f"{town} {days}"

    answer = llm.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="Weather in Ulm?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    expect(calls and calls[0].tool_name == "weather", answer)
    expect(set(calls[0].tool_kwargs) == {"town", "days"}, calls)


for check in (of_openai, of_openai_responses, of_litellm, of_langchain, of_llama_index, of_files):
    check()
    print(f"serve_clients.py: {check.__name__.replace('of_', '').replace('_', ' ')} agrees", flush=True)
