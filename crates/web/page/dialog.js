// A dialog for an action: what it does and costs, its command line, and for what destroys something
// the name of the volume, typed.

import { whyNot } from "./access.js";
import { command, h, say, withCommands } from "./dom.js";

/// Shows an action.
/// - title: what is done.
/// - words: a function that asks the server what would happen; a text, or a list of texts.
/// - line: a function of the fields that gives the command line.
/// - fields: [{ name, label, value, hint }] that the user fills in.
/// - typed: the name that the user types, for what destroys something.
/// - verb: the word on the button; none for a rehearsal, which does nothing.
/// - run: does it, with the fields; what it answers is shown: a text or
///   a list of texts, or { text, undo: { label, act } }.
/// - denied: why the client may not do it. The dialog then shows that and the command line.
export function act({ denied, ...action }) {
  if (denied) showDenied(action, denied);
  else show(action);
}

/// The command line is for another person, whose role permits it.
function showDenied({ title, line, fields = [] }, why) {
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
  const words = () => [why, "An administrator of the server can do it, or give you another token."];
  show({ title, words, line: () => line(values) });
}

function show({ title, words, line, fields = [], typed, verb, run, after }) {
  const opener = document.activeElement;
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""]));
  const says = h("div", { class: "says", role: "status" }, h("p", {}, "Asking the server ..."));
  const lines = h("p", { class: "line" });
  const showLine = () => lines.replaceChildren("Command: ", command(line(values)));
  showLine();
  let allowed = false;
  let busy = false;
  const button = h("button", { type: "submit", class: typed ? "danger" : "primary" }, verb ?? "");
  const confirm = h("input", { id: "d-typed", autocomplete: "off", autocapitalize: "off", spellcheck: "false", oninput: () => judge() });
  const judge = () => {
    button.disabled = !allowed || busy || (typed && confirm.value !== typed);
  };
  const inputs = fields.map((field) => h(
    "p",
    { class: "field" },
    h("label", { for: `d-${field.name}` }, field.label),
    h("input", {
      id: `d-${field.name}`,
      value: values[field.name],
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-describedby": field.hint ? `d-${field.name}-hint` : null,
      oninput: (event) => {
        values[field.name] = event.currentTarget.value;
        showLine();
      },
    }),
    field.hint ? h("span", { class: "hint", id: `d-${field.name}-hint` }, field.hint) : null,
  ));
  const typing = typed && verb
    ? h("p", { class: "field" }, h("label", { for: "d-typed" }, "Type ", h("strong", {}, typed), " to confirm"), confirm)
    : null;
  const close = h("button", { type: "button", onclick: () => dialog.close() }, verb ? "Cancel" : "Close");
  const form = h(
    "form",
    { method: "dialog", onsubmit: (event) => submit(event) },
    h("h2", { id: "d-title" }, title),
    says,
    inputs,
    typing,
    lines,
    h("p", { class: "buttons" }, verb ? button : null, close),
  );
  const dialog = h("dialog", { "aria-labelledby": "d-title" }, form);
  const tell = (parts, kind) => {
    const list = (Array.isArray(parts) ? parts : [parts]).filter(Boolean);
    says.className = `says ${kind ?? ""}`;
    says.replaceChildren(...list.map((part) => h("p", {}, withCommands(part))));
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!verb || button.disabled) return;
    busy = true;
    judge();
    tell("Working ...");
    try {
      const done = await run(values);
      const { text, undo } = typeof done === "string" || Array.isArray(done) ? { text: done } : done;
      tell(text, "good");
      say([text].flat().filter(Boolean).join(" ").replaceAll("`", ""));
      for (const input of form.querySelectorAll(".field")) input.remove();
      button.remove();
      close.textContent = "Close";
      if (undo) {
        const again = () => {
          dialog.close();
          undo.act();
        };
        close.before(h("button", { type: "button", onclick: again }, undo.label), " ");
      }
      close.focus();
      after?.();
    } catch (error) {
      tell([`Not done: ${error.message}`, error.next ? `Next: ${error.next}` : null], "bad");
      busy = false;
      judge();
    }
  };
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (opener?.isConnected) opener.focus();
  });
  document.body.append(dialog);
  judge();
  dialog.showModal();
  (fields.length > 0 ? form.querySelector("input") : typing ? confirm : verb ? button : close).focus();
  const ask = async () => {
    try {
      tell(words ? await words() : []);
      allowed = true;
    } catch (error) {
      tell([`The server refuses this: ${error.message}`, error.next ? `Next: ${error.next}` : null], "bad");
    }
    judge();
    if (allowed && !typing && fields.length === 0 && verb) button.focus();
  };
  ask();
}

/// A button that opens an action. `needs` is its request to the server, as the description of the API
/// names it. If the client may not make it, the button looks disabled and says why: a button that is
/// disabled cannot be reached by the keyboard.
export function actionButton(label, action, options = {}) {
  const { danger, disabled, needs, ...rest } = options;
  const denied = whyNot(needs);
  const look = denied ? { "aria-disabled": "true", class: "denied", title: denied } : { class: danger ? "danger" : null };
  return h("button", { type: "button", disabled, onclick: () => act({ ...action(), denied }), ...look, ...rest }, label);
}
