# What zsh offers behind LINE with the completions in FOLDER, an offer a line: zsh -f zsh_offers.zsh FOLDER LINE. An
# interactive zsh on a pseudo-terminal completes the line, with a compadd that prints the matches.
zmodload zsh/zpty
zpty inner zsh -f -i
zpty -w inner "PS1= PROMPT= RPROMPT=; stty -echo; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -D -u"
zpty -w inner 'compadd() {
  case " ${(j: :)@[1,(i)(-|--)]} " in (*\ -[ADO]\ *) builtin compadd "$@"; return;; esac
  local -a offers; builtin compadd -A offers "$@"; print -rl -- "<offer>"${^offers}"</offer>"; return 1
}'
zpty -w inner 'ended() { print "<ended>" }; comppostfuncs=(ended); bindkey "^I" complete-word; print "<""ready>"'
text= piece=
until [[ $text == *"<ready>"* ]] { zpty -r inner piece || exit 1; text+=$piece }
text=
zpty -n -w inner "$2"$'\t'
until [[ $text == *"<ended>"* ]] { zpty -r inner piece || exit 1; text+=$piece }
print -r -- "$text" | tr -d '\r' | sed -n 's,.*<offer>\(.*\)</offer>.*,\1,p'
zpty -d inner
