// Buttons and lists of choices.

interface ButtonProps {
  label: string;
  press: () => void;
  className?: string;
  title?: string;
  isPressed?: boolean;
  isDisabled?: boolean;
}

/** A button. With `isPressed`, it is a switch. */
export function Button({ label, press, className, title, isPressed, isDisabled }: ButtonProps) {
  const attributes = { class: className, title, disabled: isDisabled, "aria-pressed": isPressed };
  return (
    <button type="button" onClick={press} {...attributes}>
      {label}
    </button>
  );
}

interface ChoiceProps {
  label: string;
  names: (string | number)[];
  selected: number; // index of the selected name
  select: (i: number) => void;
}

/** A list of names, of which one is selected. */
export function Choice({ label, names, selected, select }: ChoiceProps) {
  return (
    <label>
      {label}
      <select value={selected} onChange={({ currentTarget }) => select(currentTarget.selectedIndex)}>
        {names.map((name, i) => (
          <option key={name} value={i}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
