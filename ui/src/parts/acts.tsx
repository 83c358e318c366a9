/** Acts: things that a person asks the server to do. */
import { type QueryKey, useMutation, useQueryClient } from "@tanstack/react-query";
import { ApiError } from "../api/client";
import { toast } from "../shell/toasts";
import { Icon } from "./icons";

export interface ActOptions<Given, Answer> {
  act: (given: Given) => Promise<Answer>;
  /** What to say once it is done. */
  said?: (answer: Answer, given: Given) => string | null;
  /** Queries that show something else now. */
  refresh?: QueryKey[];
  onDone?: (answer: Answer, given: Given) => void;
  /** The error is shown beside the form; otherwise it is a toast. */
  inForm?: boolean;
}

export function useAct<Given = void, Answer = unknown>(options: ActOptions<Given, Answer>) {
  const client = useQueryClient();
  return useMutation<Answer, Error, Given>({
    mutationFn: options.act,
    retry: false,
    onSuccess: (answer, given) => {
      const text = options.said?.(answer, given);
      if (text) toast(text);
      options.onDone?.(answer, given);
    },
    onError: (error) => {
      if (!options.inForm) toast(errorText(error));
    },
    onSettled: () => Promise.all((options.refresh ?? []).map((queryKey) => client.invalidateQueries({ queryKey }))),
  });
}

export function errorText(error: Error): string {
  return error instanceof ApiError ? `${error.message} (${error.code})` : error.message;
}

/** Why an act was refused, in the form that asked for it. */
export function ActError({ error }: { error: Error | null | undefined }) {
  if (!error) return null;
  const problem = error instanceof ApiError ? error.problem : null;
  return (
    <p className="act-error" role="alert">
      <Icon name="warn" size={14} />
      <span>
        {error.message}{" "}
        {problem && (
          <a className="link mono" href={`/errors#${problem.code}`}>
            {problem.code}
          </a>
        )}
      </span>
    </p>
  );
}
